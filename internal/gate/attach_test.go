// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// foreignProgram loads a program of somebody else, which only returns a verdict.
func foreignProgram(t *testing.T, kind ebpf.ProgramType, verdict int32) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: kind, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// dropAll attaches a foreign program that drops all packets, as the first or last one, until the returned function is
// called. A program is at one place of a device only.
func dropAll(t *testing.T, device string, at ebpf.AttachType, where link.Anchor) (remove func()) {
	t.Helper()
	l, err := link.AttachTCX(link.TCXOptions{Interface: linkByName(t, device).Attrs().Index, Attach: at, Anchor: where,
		Program: foreignProgram(t, ebpf.SchedCLS, tcxDrop)})
	if err != nil {
		t.Fatalf("attaching a foreign program to %s: %v", device, err)
	}
	remove = func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	return remove
}

// everywhere are the places where the gate of a network is attached and takes packets, apart from pod 2's device.
var everywhere = []struct {
	device string
	at     ebpf.AttachType
}{
	{"eth0", ebpf.AttachTCXIngress}, {InnerDevice, ebpf.AttachTCXEgress}, {"pod1", ebpf.AttachTCXIngress},
}

// served makes pod 1 serve vip, and returns a function that checks that clients are served.
func (n *network) served() (check func(when string)) {
	n.Helper()
	n.service()
	n.addPod(vip, 1)
	if _, err := n.g.Serve(vip, 1); err != nil {
		n.Fatal(err)
	}
	from := echo(n, podNS(1), podAt[1])
	return func(when string) {
		n.Helper()
		for _, ns := range []string{"client", ""} {
			if err := <-visit(ns, vip, 1000); err != nil {
				n.Fatalf("%s, client %q: %v; gate: %v", when, ns, err, counted(n, n.g))
			}
			<-from
		}
	}
}

// Programs of others that end the chain, as those of CNI plugins do, come behind the gate's: whether they were attached
// before it, after it, or while no daemon ran.
func TestGateRunsBeforeProgramsOfOthers(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	check := n.served()
	check("alone")
	places := func(anchor link.Anchor) (remove func()) {
		var all []func()
		for _, p := range everywhere {
			all = append(all, dropAll(t, p.device, p.at, anchor))
		}
		return func() {
			for _, f := range all {
				f()
			}
		}
	}
	// A device that somebody else got to first: the links are removed, as if the gate had not been there before.
	n.must(n.g.Close())
	n.must(removeLinks(&n.cfg))
	remove := places(link.Tail())
	n.open()
	check("behind others when it started")
	if r := n.g.Reattached(); r != 0 {
		t.Errorf("attached again %d times, want 0", r)
	}
	remove()

	remove = places(link.Head())
	n.g.poll()
	check("after others came before it")
	if r := n.g.Reattached(); r != uint64(len(everywhere)) {
		t.Errorf("attached again %d times, want %d", r, len(everywhere))
	}
	n.g.poll()
	if r := n.g.Reattached(); r != uint64(len(everywhere)) {
		t.Errorf("attached again %d times, though it was the first", r)
	}
	remove()

	n.must(n.g.Close())
	remove = places(link.Head())
	n.open()
	check("after others came while no daemon ran")
	remove()
	check("alone again")
}

// Connections do not notice that the gate attaches again.
func TestConnectionsSurviveThatTheGateIsAttachedAgain(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	n.service()
	n.addPod(vip, 1)
	if _, err := n.g.Serve(vip, 1); err != nil {
		t.Fatal(err)
	}
	echo(n, podNS(1), podAt[1])
	const rounds = 5
	for _, ns := range []string{"client", ""} {
		before := n.g.Reattached()
		conn, err := dial(ns, vip)
		n.must(err)
		done := make(chan error, 1)
		go func() { done <- exchange(conn, 16<<20) }()
		for range rounds {
			for _, p := range everywhere {
				l, err := link.AttachTCX(link.TCXOptions{Interface: linkByName(t, p.device).Attrs().Index, Attach: p.at,
					Anchor: link.Head(), Program: foreignProgram(t, ebpf.SchedCLS, -1)}) // TCX_NEXT
				n.must(err)
				defer l.Close()
			}
			n.g.poll()
		}
		if err := <-done; err != nil {
			t.Errorf("client %q: %v", ns, err)
		}
		if r := n.g.Reattached() - before; r != uint64(rounds*len(everywhere)) {
			t.Errorf("attached again %d times", r)
		}
	}
	got := counted(t, n.g)
	delete(got, "arp_replies")
	if len(got) > 0 {
		t.Errorf("counted %v", got)
	}
}

// removeLinks detaches a closed gate and keeps its maps.
func removeLinks(cfg *Config) error {
	g := &Gate{cfg: *cfg, links: attachments{byName: map[string]*attachment{}}}
	return g.detachOthers()
}

// What somebody detaches is attached again.
func TestDetachedGateIsAttachedAgain(t *testing.T) {
	n := newNetwork(t, XDPOff, 1500)
	check := n.served()
	n.g.links.mu.Lock()
	for name, a := range n.g.links.byName {
		if a.at.at != ebpf.AttachNone {
			if err := a.Detach(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	n.g.links.mu.Unlock()
	n.g.poll()
	check("detached")
	// The next process finds the new links.
	n.must(n.g.Close())
	n.open()
	check("adopted")
	if r := n.g.Reattached(); r != 0 {
		t.Errorf("the next process attached again %d times, want 0", r)
	}
}

// Beside an XDP program of another, the gate works without XDP. It uses XDP once that program is gone.
func TestGateWorksBesideAnotherXDPProgram(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	check := n.served()
	foreign := foreignProgram(t, ebpf.XDP, xdpPass)
	eth0 := linkByName(t, "eth0").Attrs().Index
	attach := func(mode link.XDPAttachFlags) (link.Link, error) {
		return link.AttachXDP(link.XDPOptions{Program: foreign, Interface: eth0, Flags: mode})
	}
	want := func(mode XDPMode) {
		t.Helper()
		if got := n.g.Attached()["eth0"]; got.Mode != mode || (got.Why == "") != (mode != XDPOff) {
			t.Errorf("XDP is %+v, want %s", got, mode)
		}
	}
	check("alone")
	want(XDPNative)
	// The kernel refuses a second program.
	for _, mode := range []link.XDPAttachFlags{link.XDPDriverMode, link.XDPGenericMode} {
		if l, err := attach(mode); err == nil {
			l.Close()
			t.Errorf("another program was attached as well, mode %d", mode)
		}
	}
	want(XDPNative)
	for _, mode := range []link.XDPAttachFlags{link.XDPDriverMode, link.XDPGenericMode} {
		n.must(n.g.Close())
		n.must(removeLinks(&n.cfg))
		other, err := attach(mode)
		n.must(err)
		n.open()
		want(XDPOff)
		check("beside another")
		n.g.poll()
		want(XDPOff)
		n.must(other.Close())
		n.g.poll()
		want(XDPNative)
		check("after another")
	}
}

// XDP is off where it would see frames that are not the gate's, or that it cannot tell apart.
func TestXDPIsOffWhereItCannotWork(t *testing.T) {
	for _, c := range []struct {
		kind   string
		vlans  []string
		untags bool
		off    bool
	}{
		{"device", nil, true, false},
		{"device", []string{"eth0.5"}, true, true},
		{"device", []string{"eth0.5"}, false, false},
		{"bond", nil, false, true},
		{"team", nil, false, true},
		{"vlan", nil, true, false}, // the driver of VLANs refuses by itself
	} {
		if why := whyNoXDP(c.kind, c.vlans, func() bool { return c.untags }); (why != "") != c.off {
			t.Errorf("%+v: %q", c, why)
		}
	}
}

// kernelHas reports whether the kernel can create a device of a type, and logs if it cannot.
func kernelHas(t *testing.T, kind, args string) bool {
	t.Helper()
	newNamespace(t, "try")
	err := inNamespace("try", func() error {
		_, err := shErr("ip link add p0 type veth peer name p1; ip link add try0 %s type %s", args, kind)
		return err
	})
	if err != nil {
		t.Logf("this kernel has no devices of type %s: not tested: %v", kind, err)
	}
	return err == nil
}

// The gate follows an interface whose MAC address changes, that is removed and comes back, and on which VLANs appear.
func TestGateFollowsItsInterfaces(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	check := n.served()
	check("at first")
	n.mac("02:00:00:00:99:01")
	check("with another MAC address")
	before := linkByName(t, "eth0").Attrs().Index

	sh(t, "ip link del eth0")
	eventually(t, func() error {
		var v gateNic
		if err := n.g.objs.Nics.Lookup(uint32(before), &v); !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("the interface is still known: %v", err)
		}
		return nil
	})
	check2 := func(when string) {
		t.Helper()
		eventually(t, func() error {
			if got := n.g.Attached()["eth0"]; got.Mode != XDPNative {
				return fmt.Errorf("XDP is %+v", got)
			}
			return nil
		})
		check(when)
	}
	sh(t, `ip link add eth0 mtu 1400 type veth peer name eth0 netns client; ip addr add %[1]s/24 dev eth0
		ip link set eth0 up
		ip -n client addr add %[2]v/24 dev eth0; ip -n client link set eth0 mtu 1400 up
		ip -n client route add %[3]v dev eth0`, nodeAddr, client.Addr(), serviceRange)
	check2("after it came back")

	if kernelHas(t, "vlan id 5", "link p0") {
		sh(t, "ip link add link eth0 name eth0.5 type vlan id 5")
		eventually(t, func() error {
			if got := n.g.Attached()["eth0"]; got.Mode != XDPOff || got.Why == "" {
				return fmt.Errorf("with a VLAN, XDP is %+v", got)
			}
			return nil
		})
		check("with a VLAN")
		sh(t, "ip link del eth0.5")
		check2("without the VLAN")
	}
}

// mac sets eth0's MAC address and waits until the gate knows it.
func (n *network) mac(to string) {
	n.Helper()
	sh(n.T, "ip link set eth0 address %s", to)
	eventually(n, func() error {
		var v gateNic
		n.must(n.g.objs.Nics.Lookup(uint32(linkByName(n, "eth0").Attrs().Index), &v))
		if got := fmt.Sprintf("%x", v.Mac); got != "020000009901" {
			return fmt.Errorf("MAC address %s", got)
		}
		return nil
	})
}

// An interface that gets the default route later becomes an external one, and stays one while the route is away.
func TestGateFollowsTheDefaultRoute(t *testing.T) {
	newNamespace(t, "client")
	var g *Gate
	cfg := Config{Dir: t.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, DefaultInterfaces: true}
	g, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(g.Close(), Remove(cfg.Dir)); err != nil {
			t.Error(err)
		}
	})
	if a := g.Attached(); len(a) != 0 {
		t.Fatalf("attached to %v", a)
	}
	sh(t, `ip link add up0 type veth peer name up0 netns client; ip addr add %s/24 dev up0; ip link set up0 up
		ip -n client link set up0 up; ip route add default via 10.46.200.2 dev up0`, nodeAddr)
	t.Cleanup(func() { sh(t, "ip link del up0") })
	attached := func() error {
		if a := g.Attached(); len(a) != 1 || a["up0"].Mode != XDPNative {
			return fmt.Errorf("attached to %v", a)
		}
		return nil
	}
	eventually(t, attached)
	sh(t, "ip route del default")
	if err := g.syncNICs(false); err != nil {
		t.Fatal(err)
	}
	if err := attached(); err != nil {
		t.Errorf("without the route: %v", err)
	}
}

// VLAN devices are usually named after the one below them, with a dot, which names of pins must not have.
func TestGateServesAtADeviceWithADotInItsName(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	n.must(n.g.Close())
	n.must(removeLinks(&n.cfg))
	rename := func(from, to string) { sh(t, "ip link set %s down; ip link set %[1]s name %s up", from, to) }
	rename("eth0", "eth0.5")
	t.Cleanup(func() { rename("eth0.5", "eth0") })
	n.cfg.Interfaces = []string{"eth0.5"}
	n.open()
	check := n.served()
	check("at first")
	n.must(n.g.Close())
	n.open()
	check("adopted")
}

// The gate serves clients at a bond and at a VLAN device. Neither gets XDP.
func TestGateServesAtBondsAndVLANs(t *testing.T) {
	for _, c := range []struct{ name, kind, args, setup string }{
		{"bond0", "bond", "", `ip link set eth0 down; ip link add bond0 type bond mode active-backup miimon 100
			ip link set eth0 master bond0; ip link set eth0 up`},
		{"eth0.5", "vlan id 5", "link p0", `ip link add link eth0 name eth0.5 type vlan id 5
			ip -n client addr flush dev eth0; ip -n client link add link eth0 name eth0.5 type vlan id 5
			ip -n client addr add 10.46.200.10/24 dev eth0.5; ip -n client link set eth0.5 up
			ip -n client route replace 10.46.100.0/24 dev eth0.5`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !kernelHas(t, c.kind, c.args) {
				return
			}
			n := newNetwork(t, XDPAuto, 1500)
			n.must(n.g.Close())
			n.must(removeLinks(&n.cfg))
			sh(t, "ip addr flush dev eth0; %s; ip addr add %s/24 dev %s; ip link set %[3]s up", c.setup, nodeAddr, c.name)
			t.Cleanup(func() { sh(t, "ip link del %s", c.name) })
			n.cfg.Interfaces = []string{c.name}
			n.open()
			check := n.served()
			if got := n.g.Attached()[c.name]; got.Mode != XDPOff || got.Why == "" {
				t.Errorf("XDP is %+v, want it off for a reason", got)
			}
			check("at " + c.name)
		})
	}
}

// A netkit device has a chain of programs of its own, which runs before tcx.
func TestGateIsAttachedToNetkitDevices(t *testing.T) {
	if !kernelHas(t, "netkit peer name try1", "") { // iproute2 must know it, too
		return
	}
	for _, mode := range []string{"l3", "l2"} {
		t.Run(mode, func(t *testing.T) {
			n := newNetwork(t, XDPAuto, 1500)
			sh(t, `ip link del pod1
				ip link add pod1 type netkit mode %s peer name eth0 netns pod1; ip link set pod1 up`, mode)
			sh(t, `ip -n pod1 link set eth0 up; ip -n pod1 addr add %v/32 dev eth0
				ip -n pod1 route add 169.254.46.1 dev eth0; ip -n pod1 route add default via 169.254.46.1`, podAt[1].Addr())
			if mac := linkByName(t, "pod1").Attrs().HardwareAddr; len(mac) > 0 { // none in mode l3, which is without ARP
				sh(t, "ip -n pod1 neigh add 169.254.46.1 lladdr %s dev eth0", mac)
			}
			check := n.served()
			check("netkit")
			l, err := link.AttachNetkit(link.NetkitOptions{Interface: linkByName(t, "pod1").Attrs().Index,
				Program: foreignProgram(t, ebpf.SchedCLS, tcxDrop), Attach: ebpf.AttachNetkitPeer, Anchor: link.Head()})
			n.must(err)
			n.g.poll()
			check("netkit behind another")
			n.must(l.Close())
		})
	}
}

// What doctor shows agrees with what the gate does.
func TestInspectXDPAgreesWithTheGate(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	sh(t, "ip route add default via %v dev eth0", client.Addr())
	want := func(want XDPMode) {
		t.Helper()
		got, err := InspectXDP()
		if err != nil || len(got) != 1 || got["eth0"].Mode != want || (got["eth0"].Why == "") == (want == XDPOff) {
			t.Errorf("XDP %+v, %v; want %s", got, err, want)
		}
	}
	want(n.g.Attached()["eth0"].Mode)
	n.must(n.g.Close())
	n.must(removeLinks(&n.cfg))
	want(XDPNative)
	foreign := foreignProgram(t, ebpf.XDP, xdpPass)
	eth0 := linkByName(t, "eth0").Attrs().Index
	l, err := link.AttachXDP(link.XDPOptions{Program: foreign, Interface: eth0, Flags: link.XDPGenericMode})
	n.must(err)
	want(XDPOff)
	n.must(l.Close())
	n.open()
	for name, want := range map[string]bool{"lo": false, "eth0": true} {
		if has, err := driverHasXDP(linkByName(t, name).Attrs().Index); has != want || err != nil {
			t.Errorf("%s has native XDP: %v, %v", name, has, err)
		}
	}
}
