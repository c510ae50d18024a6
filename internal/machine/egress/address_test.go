// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/netlab"
	"wangell.loutres.me/test/testutil/netlab/netlabtest"
)

// A port at the loopback address leads the machine's own programs to the service, and nobody else: no other host, not
// even one that sends packets to 127.0.0.1. A port at another address of the machine is open there alone. A host with a
// server stands for the gate and a pod.
func TestPortsAreOpenAtTheirAddressAlone(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{Clients: 2})
	client, pod := n.Clients[0], n.Clients[1]
	run := func(ns *netlab.Namespace, script string) {
		t.Helper()
		out, err := ns.Command(t.Context(), "sh", "-ec", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %s: %v: %s", ns.Host, script, err, out)
		}
	}
	run(n.Node, "ip link add "+gateDevice+" type veth peer name gate netns "+pod.Name+
		"; ip address add 10.46.100.1/24 dev "+gateDevice+"; ip link set "+gateDevice+" up"+
		"; echo 1 >/proc/sys/net/ipv4/conf/"+gateDevice+"/forwarding")
	run(pod, "ip address add 10.46.100.2/24 dev gate; ip link set gate up"+
		"; ip route replace "+client.Addr.String()+" via 10.46.100.1"+
		"; ip route replace "+n.Node.Addr.String()+" via 10.46.100.1")
	server, err := pod.Listen(t.Context(), "tcp", "10.46.100.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	service := netip.MustParseAddrPort("10.46.100.2:80")
	local := netip.MustParseAddrPort("127.0.0.1:8000")
	at := netip.AddrPortFrom(n.Node.Addr, 8001)
	all := netip.MustParseAddrPort("0.0.0.0:8002")
	var e *Egress
	err = n.Node.Do(func() (err error) {
		e, err = Open(Config{Pods: netip.MustParsePrefix("10.46.128.0/17"), Services: netip.MustParsePrefix("10.46.100.0/24"),
			DevicePrefix: "wgtest", Log: slog.New(slog.DiscardHandler)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = e.SetServices([]netip.Addr{service.Addr()},
		map[netip.AddrPort]netip.AddrPort{local: service, at: service, all: service})
	if err != nil {
		t.Fatal(err)
	}
	// leads reports whether the machine leads a client to the service: the kernel then has a connection between them.
	leads := func(from *netlab.Namespace, to string) bool {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if c, err := from.Dialer().DialContext(ctx, "tcp", to); err == nil {
			c.Close()
		}
		var flows []*netlink.ConntrackFlow
		err := n.Node.Do(func() (err error) {
			flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		want := netip.MustParseAddrPort(to)
		return slices.ContainsFunc(flows, func(f *netlink.ConntrackFlow) bool {
			isLocal := from == n.Node
			return f.Forward.DstIP.Equal(want.Addr().AsSlice()) && f.Forward.DstPort == want.Port() &&
				f.Reverse.SrcIP.Equal(service.Addr().AsSlice()) && f.Forward.SrcIP.Equal(client.Addr.AsSlice()) != isLocal
		})
	}
	machine := func(port string) string { return n.Node.Addr.String() + ":" + port }
	for _, c := range []struct {
		from *netlab.Namespace
		to   string
		want bool
	}{
		{n.Node, "127.0.0.1:8000", true}, {n.Node, machine("8000"), false}, {client, machine("8000"), false},
		{n.Node, "127.0.0.2:8000", false},
		{n.Node, machine("8001"), true}, {client, machine("8001"), true}, {n.Node, "127.0.0.1:8001", false},
		{n.Node, "127.0.0.1:8002", true}, {n.Node, machine("8002"), true}, {client, machine("8002"), true},
	} {
		if got := leads(c.from, c.to); got != c.want {
			t.Errorf("%s to %s: led to the service: %t, want %t", c.from.Host, c.to, got, c.want)
		}
	}
	// The neighbor sends packets to 127.0.0.1 to the machine. Those to the port of all addresses do arrive, which shows
	// that the packets are sent.
	run(client, "ip address del 127.0.0.1/8 dev lo; ip route add 127.0.0.1/32 via "+n.Node.Addr.String()+
		"; for f in /proc/sys/net/ipv4/conf/*/route_localnet; do echo 1 >$f; done")
	if leads(client, "127.0.0.1:8000") {
		t.Error("a neighbor is led to the service of the loopback address")
	}
	if !leads(client, "127.0.0.1:8002") {
		t.Error("the packets of the neighbor do not arrive: the test shows nothing")
	}
}

// An earlier version had other names of pods' devices, and a table named after them.
func TestTableOfAnEarlierVersionIsTakenOver(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{Clients: 1})
	former := Config{Pods: netip.MustParsePrefix("10.46.128.0/17"), Services: netip.MustParsePrefix("10.46.100.0/24"),
		DevicePrefix: "wgtest", Log: slog.New(slog.DiscardHandler)}
	now := former
	now.DevicePrefix, now.FormerPrefix = "wvtest", "wgtest"
	in := func(f func() error) {
		t.Helper()
		if err := n.Node.Do(f); err != nil {
			t.Fatal(err)
		}
	}
	tables := func() (names []string) {
		t.Helper()
		in(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			list, err := conn.ListTables()
			for _, t := range list {
				names = append(names, t.Name)
			}
			return err
		})
		return names
	}
	old := func() {
		in(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			return ruleset{cfg: former, switched: []string{"eth0"}}.apply(conn)
		})
	}
	in(func() error { return setForwarding("eth0", true) }) // by the earlier version, which noted that in its table
	old()
	if got := tables(); !slices.Equal(got, []string{"wangell-wgtest"}) {
		t.Fatalf("tables %q", got)
	}
	var e *Egress
	in(func() (err error) { e, err = Open(now); return err })
	if got := tables(); !slices.Equal(got, []string{"wangell-wvtest"}) {
		t.Errorf("tables %q, want only that of this version", got)
	}
	in(func() error {
		if got, err := now.readSwitched(); err != nil || !slices.Contains(got, "eth0") {
			t.Errorf("devices that were switched on: %q, %v", got, err)
		}
		return nil
	})
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	old()
	in(func() error { return Remove(now) })
	if got := tables(); len(got) > 0 {
		t.Errorf("tables %q are left", got)
	}
}
