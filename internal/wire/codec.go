// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unicode/utf8"

	"wangell.loutres.me/internal/base/monotime"
)

// Sizes on the wire, in bytes.
const (
	ipSize   = 16         // an address; IPv4 as ::ffff:a.b.c.d
	addrSize = ipSize + 2 // an address and a port
)

// appendAddr appends an address and port; the zero value becomes 18 zero bytes.
func appendAddr(b []byte, a netip.AddrPort) []byte {
	if !a.IsValid() {
		return append(b, make([]byte, addrSize)...)
	}
	return binary.BigEndian.AppendUint16(appendIP(b, a.Addr()), a.Port())
}

// appendIP appends an address; the zero value becomes 16 zero bytes.
func appendIP(b []byte, a netip.Addr) []byte {
	if !a.IsValid() {
		return append(b, make([]byte, ipSize)...)
	}
	ip := a.As16()
	return append(b, ip[:]...)
}

// appendPrefix appends the length of a prefix in one byte, then its address; the zero value becomes 17 zero bytes.
func appendPrefix(b []byte, p netip.Prefix) []byte {
	if !p.IsValid() {
		return append(b, make([]byte, 1+ipSize)...)
	}
	return appendIP(append(b, byte(p.Bits())), p.Addr())
}

// appendText appends the length of s in one byte, then s, which has at most 255 bytes.
func appendText(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

// appendName appends the length of s in two bytes, then s, which has at most 65,535 bytes.
func appendName(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// appendTime appends a time as 8 bytes of nanoseconds.
func appendTime(b []byte, t monotime.Time) []byte { return binary.BigEndian.AppendUint64(b, uint64(t)) }

// checkIP rejects addresses that are missing or that another machine would read differently.
func checkIP(what string, a netip.Addr) error {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return fmt.Errorf("%s: no address", what)
	case a.Zone() != "":
		return fmt.Errorf("%s %s: an address with a zone is valid on one machine only", what, a)
	case a.Is4In6():
		return fmt.Errorf("%s %s: write it as the IPv4 address %s", what, a, a.Unmap())
	}
	return nil
}

// checkAddr rejects what checkIP rejects, and port 0.
func checkAddr(what string, a netip.AddrPort) error {
	if err := checkIP(what, a.Addr()); err != nil {
		return err
	}
	if a.Port() == 0 {
		return fmt.Errorf("%s %s: port 0", what, a)
	}
	return nil
}

// checkPrefix rejects what checkIP rejects, and prefixes with bits beyond their length.
func checkPrefix(what string, p netip.Prefix) error {
	if err := checkIP(what, p.Addr()); err != nil {
		return err
	}
	if !p.IsValid() || p.Masked() != p {
		return fmt.Errorf("%s %s: not a prefix", what, p)
	}
	return nil
}

// checkService checks the service address and the times of a message about one service.
func checkService(service netip.AddrPort, times ...monotime.Time) error {
	if err := checkAddr("service", service); err != nil {
		return err
	}
	return checkTimes(times...)
}

// checkString rejects strings of more than limit bytes and strings that are not UTF-8.
func checkString(what, s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("%s: %d bytes, at most %d", what, len(s), limit)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s: %q is not UTF-8", what, s)
	}
	return nil
}

// checkTimes rejects negative times.
func checkTimes(times ...monotime.Time) error {
	for _, t := range times {
		if t < 0 {
			return fmt.Errorf("negative time %d", t)
		}
	}
	return nil
}

// decoder reads fields from b, in order. After the first error every field reads as zero.
type decoder struct {
	b   []byte
	at  int
	err error
}

func (d *decoder) fail(format string, a ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, a...)
	}
}

// left returns the number of bytes that have not been read.
func (d *decoder) left() int { return len(d.b) - d.at }

func (d *decoder) take(n int) []byte {
	if d.err != nil {
		return nil
	}
	if d.left() < n {
		d.fail("truncated: %d bytes expected at byte %d of %d", n, d.at, len(d.b))
		return nil
	}
	d.at += n
	return d.b[d.at-n : d.at]
}

func (d *decoder) u8() uint8 {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if p := d.take(2); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if p := d.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if p := d.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (d *decoder) time() monotime.Time { return monotime.Time(d.u64()) }

func (d *decoder) str(n int) string { return string(d.take(n)) }

// text reads what appendText wrote.
func (d *decoder) text() string { return d.str(int(d.u8())) }

// name reads what appendName wrote.
func (d *decoder) name() string { return d.str(int(d.u16())) }

func (d *decoder) addr() netip.AddrPort {
	p := d.take(addrSize)
	if p == nil || [addrSize]byte(p) == [addrSize]byte{} {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom16([ipSize]byte(p)).Unmap(), binary.BigEndian.Uint16(p[ipSize:]))
}

func (d *decoder) ip() netip.Addr {
	p := d.take(ipSize)
	if p == nil || [ipSize]byte(p) == [ipSize]byte{} {
		return netip.Addr{}
	}
	return netip.AddrFrom16([ipSize]byte(p)).Unmap()
}

// prefix reads what appendPrefix wrote.
func (d *decoder) prefix() netip.Prefix {
	bits := int(d.u8())
	a := d.ip()
	if !a.IsValid() && bits == 0 {
		return netip.Prefix{}
	}
	p := netip.PrefixFrom(a, bits)
	if !p.IsValid() {
		d.fail("prefix of %d bits of %v", bits, a)
	}
	return p
}

// count returns n, the number of elements of at least size bytes that follow, or 0 if the bytes left cannot hold them.
// Memory for the elements is allocated only after this check.
func (d *decoder) count(n, size int) int {
	if d.err == nil && n*size > d.left() {
		d.fail("truncated: %d entries announced, %d bytes left", n, d.left())
	}
	if d.err != nil {
		return 0
	}
	return n
}

// flag reads a byte of flags with one that is known, and reports whether it is set.
func (d *decoder) flag(known byte) bool {
	v := d.u8()
	if v&^known != 0 {
		d.fail("unknown flags %#x", v)
	}
	return v == known
}

// end rejects trailing bytes and returns the first error.
func (d *decoder) end() error {
	if d.left() > 0 {
		d.fail("%d trailing bytes", d.left())
	}
	return d.err
}
