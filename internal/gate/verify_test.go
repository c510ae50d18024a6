// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// routedBy is an IP option that names routers to pass: loose (131) or strict (137) source route.
func routedBy(kind byte, after ...layers.IPv4Option) []layers.IPv4Option {
	return append(after, layers.IPv4Option{OptionType: kind, OptionLength: 7, OptionData: []byte{4, 10, 99, 0, 1}},
		layers.IPv4Option{OptionType: 0})
}

// No packet that no client can have sent parks anything or wakes its service, wherever it arrives.
func TestInvalidSYNWakesNothing(t *testing.T) {
	all := newWorld(t, nil)
	from := func(a string) func(w *world) []byte {
		return segmentFrame(func(w *world) segment {
			s := w.syn(1000)
			s.from = netip.MustParseAddrPort(a)
			return s
		})
	}
	options := func(o []layers.IPv4Option) func(w *world) []byte {
		return segmentFrame(func(w *world) segment { s := w.syn(1000); s.ipOptions = o; return s })
	}
	badOption := func(length byte) func(w *world) []byte {
		return func(w *world) []byte {
			f := options(routedBy(131, router...))(w)
			f[35] = length // of the first option
			f[24], f[25] = 0, 0
			set16(24, ^fold16(sum16(0, f[14:14+int(f[14]&15)*4])))(f)
			return f
		}
	}
	withData := func(n int) func(w *world) []byte {
		return segmentFrame(func(w *world) segment { s := w.syn(1000); s.payload = make([]byte, n); return s })
	}
	damaged := func(at int) func(w *world) []byte {
		return with(withData(1001), func(b []byte) { b[at] ^= 0x10 })
	}
	for _, c := range []struct {
		name, counter string
		frame         func(w *world) []byte
	}{
		{"damaged port", "bad_checksum", with(synFrame, func(b []byte) { b[35] ^= 1 })},
		{"damaged option", "bad_checksum", with(synFrame, func(b []byte) { b[60] ^= 1 })},
		{"damaged byte 500", "bad_checksum", damaged(500)},
		{"damaged byte 1000", "bad_checksum", damaged(1000)},
		{"damaged last byte", "bad_checksum", damaged(74 + 1000)},
		{"checksum 0", "bad_checksum", with(synFrame, set16(50, 0))},
		{"from 0.0.0.0", "bad_source", from("0.0.0.0:4000")},
		{"from 0.1.2.3", "bad_source", from("0.1.2.3:4000")},
		{"from 127.0.0.1", "bad_source", from("127.0.0.1:4000")},
		{"from 127.255.0.1", "bad_source", from("127.255.0.1:4000")},
		{"from 224.0.0.1", "bad_source", from("224.0.0.1:4000")},
		{"from 239.255.255.255", "bad_source", from("239.255.255.255:4000")},
		{"from 255.255.255.255", "bad_source", from("255.255.255.255:4000")},
		{"from 240.0.0.1", "bad_source", from("240.0.0.1:4000")},
		{"wrong IP checksum", "bad_checksum", with(synFrame, func(b []byte) { b[24] ^= 0x55 })},
		{"option of length 1, then a source route", "bad_source", badOption(1)},
		{"option beyond the header, then a source route", "bad_source", badOption(13)},
		{"from itself", "bad_source", from("10.46.100.5:80")},
		{"from its address", "bad_source", from("10.46.100.5:4000")},
		{"from another service address", "bad_source", from("10.46.100.6:4000")},
		{"loose source route", "bad_source", options(routedBy(131))},
		{"strict source route", "bad_source", options(routedBy(137))},
		{"source route after another option", "bad_source", options(routedBy(131, router...))},
		{"longer than a parked SYN may be", "too_long", withData(1463)},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, on := range []program{onXDP, onNIC, onLocal, onPod2} {
				w := all.in(t)
				cold(w)
				w.service(netip.MustParseAddrPort("10.46.100.6:80"), 100, 100)
				drop := uint32(tcxDrop)
				if on == onXDP {
					drop = xdpDrop
				}
				w.wantRun(on, c.frame(w), drop)
				w.wantParked(0, 0)
				if n := w.g.ServiceCounters(vip); n != (ServiceCounters{}) || w.g.ServiceState(vip) != Cold {
					t.Errorf("%v: %+v, state %d; want a cold service", on, n, w.g.ServiceState(vip))
				}
				if got, want := fmt.Sprint(w.counted()), fmt.Sprint(map[string]uint64{c.counter: 1}); got != want {
					t.Errorf("%v: counted %v, want %v", on, got, want)
				}
			}
		})
	}
}

// The lengths are those at which the sum is split or padded.
func TestRightChecksumsAreRecognized(t *testing.T) {
	all := newWorld(t, nil)
	for _, on := range []program{onXDP, onNIC} {
		for _, n := range []int{0, 1, 2, 3, 471, 472, 473, 983, 984, 985, 1441, 1442, 1460, 1461, 1462} {
			for _, ipOptions := range [][]layers.IPv4Option{nil, router} {
				for _, partial := range []bool{false, true} {
					w := all.in(t)
					cold(w)
					s := w.syn(1000)
					s.payload, s.ipOptions, s.padding = bytes.Repeat([]byte{0xff, 0x7f, 3}, n)[:n], ipOptions, 2
					s.partial = partial
					f := s.frame()
					w.run(on, f)
					if len(f)-2 > 1536 {
						continue
					}
					if w.g.ServiceState(vip) != Waking || len(w.counted()) > 0 {
						t.Errorf("%v: %d bytes of data, IP options %v, partial %v: state %d, counted %v", on, n, ipOptions,
							partial, w.g.ServiceState(vip), w.counted())
					}
				}
			}
		}
	}
}
