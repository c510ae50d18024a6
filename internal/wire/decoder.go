// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unicode/utf8"

	"wangell.loutres.me/internal/monotime"
)

// addrSize is an address and port on the wire: 16 bytes (IPv4 as ::ffff:a.b.c.d) and 2 bytes.
const addrSize = 18

// appendAddr appends an address and port; the zero value becomes 18 zero bytes.
func appendAddr(b []byte, a netip.AddrPort) []byte {
	if !a.IsValid() {
		return append(b, make([]byte, addrSize)...)
	}
	ip := a.Addr().As16()
	b = append(b, ip[:]...)
	return binary.BigEndian.AppendUint16(b, a.Port())
}

// ipSize is an address without a port on the wire: 16 bytes (IPv4 as ::ffff:a.b.c.d).
const ipSize = 16

// appendIP appends an address; the zero value becomes 16 zero bytes.
func appendIP(b []byte, a netip.Addr) []byte {
	if !a.IsValid() {
		return append(b, make([]byte, ipSize)...)
	}
	ip := a.As16()
	return append(b, ip[:]...)
}

// checkIP refuses what is not the address of a machine, and what does not survive the wire.
func checkIP(what string, a netip.Addr) error {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return fmt.Errorf("%s: no address", what)
	case a.Zone() != "":
		return fmt.Errorf("%s %s: an address with a zone has no meaning on another machine", what, a)
	case a.Is4In6():
		return fmt.Errorf("%s %s: write it as the IPv4 address that it is", what, a)
	}
	return nil
}

// checkAddr refuses what is not the address and port of a TCP service, and what does not survive the wire.
func checkAddr(what string, a netip.AddrPort) error {
	if err := checkIP(what, a.Addr()); err != nil {
		return err
	}
	if a.Port() == 0 {
		return fmt.Errorf("%s %s: port 0", what, a)
	}
	return nil
}

// checkString refuses strings that are too long or not UTF-8.
func checkString(what, s string, most int) error {
	if len(s) > most {
		return fmt.Errorf("%s: %d bytes, at most %d", what, len(s), most)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s: %q is not UTF-8", what, s)
	}
	return nil
}

// appendText appends a string of at most 255 bytes after its length in one byte.
func appendText(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

// checkTimes refuses negative times.
func checkTimes(times ...monotime.Time) error {
	for _, t := range times {
		if t < 0 {
			return fmt.Errorf("negative time %d", t)
		}
	}
	return nil
}

// decoder reads fixed fields from the front of b. After the first error everything reads as zero.
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

// left is how many bytes are not yet read.
func (d *decoder) left() int { return len(d.b) - d.at }

func (d *decoder) take(n int) []byte {
	if d.err != nil {
		return nil
	}
	if d.left() < n {
		d.fail("cut short: %d bytes wanted at byte %d of %d", n, d.at, len(d.b))
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

// text reads a string after its length in one byte.
func (d *decoder) text() string { return d.str(int(d.u8())) }

func (d *decoder) addr() netip.AddrPort {
	p := d.take(addrSize)
	if p == nil || [addrSize]byte(p) == [addrSize]byte{} {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(p)).Unmap(), binary.BigEndian.Uint16(p[16:]))
}

func (d *decoder) ip() netip.Addr {
	p := d.take(ipSize)
	if p == nil || [ipSize]byte(p) == [ipSize]byte{} {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte(p)).Unmap()
}

// count checks a number of elements, each of which takes at least size bytes, before room is made for them.
func (d *decoder) count(n, size int) int {
	if d.err == nil && n*size > d.left() {
		d.fail("cut short: %d entries announced, %d bytes left", n, d.left())
	}
	if d.err != nil {
		return 0
	}
	return n
}

// end refuses trailing bytes and returns the first error.
func (d *decoder) end() error {
	if d.left() > 0 {
		d.fail("%d trailing bytes", d.left())
	}
	return d.err
}
