// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"

	"github.com/safchain/ethtool"
)

// SetChecksumOffload turns transmit checksum offload of a veth device on or off, and segmentation offload with it. The
// device is in the calling thread's network namespace.
func SetChecksumOffload(device string, on bool) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("set checksum offload of %s: %w", device, err)
	}
	defer e.Close()
	if err := e.Change(device, map[string]bool{"tx-checksum-ip-generic": on}); err != nil {
		return fmt.Errorf("set checksum offload of %s: %w", device, err)
	}
	return nil
}
