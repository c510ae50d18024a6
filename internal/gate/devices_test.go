// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// The clients of this node's own addresses are on the node, and no client has the broadcast address of a subnet.
func TestAddressesThatNoClientOutsideHas(t *testing.T) {
	all := newWorld(t, func(*Config) {
		sh(t, `ip addr add 10.46.201.1/24 dev nic; ip addr add 10.46.202.1/24 brd 10.46.202.77 dev nic
			ip addr add 10.46.203.1/31 dev nic; ip addr add 10.46.203.9/32 dev nic
			ip addr add 10.46.203.17 peer 10.46.203.18/32 dev nic`)
	})
	everywhere := []program{onXDP, onNIC, onPod2, onLocal}
	for from, dropped := range map[string][]program{
		"10.46.201.1":   everywhere[:3],
		"10.46.203.1":   everywhere[:3],
		"10.46.203.9":   everywhere[:3],
		"10.46.203.17":  everywhere[:3],
		"10.46.201.255": everywhere,
		"10.46.202.77":  everywhere,
		"10.46.202.255": everywhere,
		"10.46.201.0":   nil, // since Linux 5.14 an address like any other
		"10.46.201.2":   nil,
		"10.46.203.0":   nil, // the other end of a link (RFC 3021)
		"10.46.203.10":  nil,
		"10.46.203.18":  nil,
	} {
		for _, on := range everywhere {
			w := all.in(t)
			cold(w)
			w.wantSource(from, on, dropped)
		}
	}
}

// wantSource checks whether a SYN from an address wakes vip: not if it is at one of the programs dropped.
func (w *world) wantSource(from string, on program, dropped []program) {
	w.Helper()
	if err := w.checkSource(from, on, dropped); err != nil {
		w.Error(err)
	}
}

func (w *world) checkSource(from string, on program, dropped []program) error {
	w.Helper()
	s, _, drop := synAt(w, on)
	s.from = netip.AddrPortFrom(netip.MustParseAddr(from), 4000)
	want := Waking
	counts := map[string]uint64{}
	for _, p := range dropped {
		if p == on {
			want, counts = Cold, map[string]uint64{"bad_source": 1}
		}
	}
	v, _ := w.run(on, s.frame())
	if got := w.g.ServiceState(vip); v != drop || got != want || fmt.Sprint(w.counted()) != fmt.Sprint(counts) {
		return fmt.Errorf("SYN from %s at gate_%v: verdict %d, state %d, counted %v; want state %d, %v", from, on, int32(v),
			got, w.counted(), want, counts)
	}
	return nil
}

// The gate follows the node's addresses, and finds those that changed while no daemon ran.
func TestOwnAddressesAreFollowed(t *testing.T) {
	n := newNetwork(t, XDPOff, 1500)
	w := &world{TB: t, g: n.g, nic: linkByName(t, "eth0")}
	follow := func(from string, own bool) {
		t.Helper()
		var dropped []program
		if own {
			dropped = []program{onNIC}
		}
		eventually(t, func() error {
			w.reset()
			cold(w)
			return w.checkSource(from, onNIC, dropped)
		})
	}
	follow(nodeAddr, true)
	sh(t, "ip addr add 192.0.2.1/24 dev eth0; ip addr add 192.0.2.1/32 dev lo")
	follow("192.0.2.1", true)
	follow("192.0.2.255", true)
	sh(t, "ip addr del 192.0.2.1/24 dev eth0")
	follow("192.0.2.255", false)
	follow("192.0.2.1", true) // lo still has it
	sh(t, `ip addr del 192.0.2.1/32 dev lo; ip link add new0 type veth peer name new1
		ip addr add 198.51.100.1/24 dev new0`)
	follow("192.0.2.1", false)
	follow("198.51.100.1", true)
	sh(t, "ip link del new0")
	follow("198.51.100.1", false)

	n.must(n.g.Close())
	sh(t, "ip addr add 192.0.2.9/24 dev lo; ip addr del %s/24 dev eth0", nodeAddr)
	n.open()
	w.g = n.g
	w.reset()
	cold(w)
	w.wantSource("192.0.2.255", onNIC, []program{onNIC})
	w.reset()
	cold(w)
	w.wantSource(nodeAddr, onNIC, nil)
}

func TestOwnAddressesOfDevices(t *testing.T) {
	ipNet := func(s string) *net.IPNet {
		p := netip.MustParsePrefix(s)
		return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
	}
	got := ownAddresses([]netlink.Addr{
		{IPNet: ipNet("192.0.2.1/30")},
		{IPNet: ipNet("192.0.2.3/32")}, // broadcast of the subnet before, but a host all the same
		{IPNet: ipNet("198.51.100.1/32"), Peer: ipNet("203.0.113.9/24"), Broadcast: net.IPv4(203, 0, 113, 99)},
		{IPNet: ipNet("127.0.0.1/8"), Broadcast: net.IPv4bcast},
	})
	for a, want := range map[string]uint32{
		"192.0.2.1": ownHost, "192.0.2.3": ownHost, "198.51.100.1": ownHost, "203.0.113.255": ownBroadcast,
		"203.0.113.99": ownBroadcast, "127.0.0.1": ownHost, "127.255.255.255": ownBroadcast,
		"255.255.255.255": ownBroadcast,
	} {
		key := toAddr(netip.MustParseAddr(a))
		if got[key] != want {
			t.Errorf("%s is %d, want %d", a, got[key], want)
		}
		delete(got, key)
	}
	for a := range got {
		t.Errorf("%v is among them", fromAddr(a))
	}
}

// With 127.0.0.1 as its only address, a machine would send to services from 0.0.0.0.
func TestMachineWithoutAnAddressReachesServices(t *testing.T) {
	newNamespace(t, "lonely")
	cfg := Config{Dir: t.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, DefaultInterfaces: true}
	wantSource := func(want string) error {
		got := sh(t, "ip -n lonely route get 10.46.100.9")
		if !strings.Contains(got, " src "+want+" ") {
			return fmt.Errorf("the source is not %s: %s", want, got)
		}
		return nil
	}
	open := func() (g *Gate) {
		t.Helper()
		if err := inNamespace("lonely", func() (err error) { g, err = Open(cfg); return err }); err != nil {
			t.Fatal(err)
		}
		return g
	}
	g := open()
	if err := wantSource("169.254.46.1"); err != nil {
		t.Error(err)
	}
	// With an address of its own, the machine uses that from the next start on.
	sh(t, `ip -n lonely link add up0 type veth peer name up1; ip -n lonely addr add 192.0.2.7/24 dev up0
		ip -n lonely link set up0 up`)
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	g = open()
	t.Cleanup(func() {
		if err := errors.Join(g.Close(), inNamespace("lonely", func() error { return Remove(cfg.Dir) })); err != nil {
			t.Error(err)
		}
	})
	if err := wantSource("192.0.2.7"); err != nil {
		t.Error(err)
	}
	// It may lose that address while the gate runs.
	sh(t, "ip -n lonely addr del 192.0.2.7/24 dev up0")
	eventually(t, func() error { return wantSource("169.254.46.1") })
}
