// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"encoding/binary"
	"net/netip"
)

// span is a range of addresses, first and last included.
type span struct{ first, last uint32 }

func spanOf(p netip.Prefix) span {
	a := p.Masked().Addr().As4()
	first := binary.BigEndian.Uint32(a[:])
	return span{first, first | uint32(uint64(1)<<(32-p.Bits())-1)}
}
