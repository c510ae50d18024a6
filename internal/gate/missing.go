// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"

	"github.com/cilium/ebpf"
)

// ignoreMissing drops the error that a map has no such entry.
func ignoreMissing(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}
