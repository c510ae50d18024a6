// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

func TestConnectionsAreCountedByClientAndService(t *testing.T) {
	w := newRemoteWorld(t, nil)
	w.warm(vip, 1)
	w.fillFlows(600)
	closing := gateFlow{State: closed, Generation: 1}
	w.must(w.g.objs.Flows.Put(flowKey(netip.MustParseAddrPort("10.45.9.9:7"), vip), closing))
	w.addRemote(2)
	remote := gateFlow{State: estab}
	for i := range w.g.pods.items {
		if p := w.g.pods.at(uint32(i)); p.Id == 2 {
			remote.Pod, remote.Generation = uint32(i), p.Generation
		}
	}
	if remote.Pod == 0 {
		t.Fatal("the pod of another node has no entry")
	}
	w.must(w.g.objs.Flows.Put(flowKey(netip.MustParseAddrPort("10.45.9.9:8"), vip), remote))
	got, others, err := w.g.Connections(2)
	w.must(err)
	want := []Connection{
		{netip.MustParseAddr("10.45.0.0"), vip, 256}, {netip.MustParseAddr("10.45.0.1"), vip, 256},
	}
	if !slices.Equal(got, want) || others != 88 {
		t.Errorf("%v and %d others, want %v and 88", got, others, want)
	}
	if got, others, err := w.g.Connections(10); len(got) != 3 || got[2].Open != 88 || others != 0 || err != nil {
		t.Errorf("%v, %d, %v", got, others, err)
	}
}

// tick waits until the kernel's coarse clock has advanced.
func tick() {
	for begin := time.Now(); time.Since(begin) < 25*time.Millisecond; {
		time.Sleep(time.Millisecond)
	}
}

// lastUse returns when pod 1 of vip was used last.
func (w *world) lastUse() monotime.Time {
	w.Helper()
	c, err := w.g.PodCounters(vip, 1)
	w.must(err)
	return c.LastPacket
}

// A handshake that does not complete, whatever both sides repeat, and segments that do not fit their flow are no use:
// strangers can cause all of them.
func TestOnlySegmentsOfConnectionsAreUse(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1)
	unused := func(what string) {
		t.Helper()
		if at := w.lastUse(); at != 0 {
			t.Errorf("%s: used at %v", what, at)
		}
	}
	w.wantRun(onNIC, w.syn(1000).frame(), tcxRedirect)
	unused("SYN")
	w.wantRun(onNIC, w.syn(1000).frame(), tcxRedirect)
	unused("repeated SYN")
	synack := w.fromPod(1, "SA", 5000, 1001)
	synack.options = synOptions
	for range 3 {
		w.wantRun(onPod1, synack.frame(), tcxRedirect)
		unused("SYN-ACK")
	}
	w.wantRun(onNIC, w.fromClient("A", 1001, 9999).frame(), tcxRedirect)
	unused("ACK of what the pod has not sent")
	w.wantRun(onNIC, w.fromClient("R", 77, 0).frame(), tcxRedirect)
	unused("forged RST")
	w.wantRun(onNIC, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
	if w.lastUse() == 0 {
		t.Error("the handshake is complete: no use")
	}

	for name, segment := range map[string]struct {
		on program
		s  segment
	}{
		"data outside the window":        {onNIC, w.fromClient("PA", 900_000_000, 5001, 1, 2, 3)},
		"data without ACK":               {onNIC, w.fromClient("P", 1001, 0, 1, 2, 3)},
		"SYN":                            {onNIC, w.syn(4000)},
		"forged RST":                     {onNIC, w.fromClient("R", 4000, 0)},
		"ACK of what was not sent":       {onNIC, w.fromClient("A", 1001, 5_000_000)},
		"challenge ACK of the pod":       {onPod1, w.fromPod(1, "A", 5001, 1001)},
		"the pod's data of another flow": {onPod1, w.fromPod(1, "PA", 900_000_000, 1001, 1)},
	} {
		before := w.lastUse()
		tick()
		w.wantRun(segment.on, segment.s.frame(), tcxRedirect)
		if at := w.lastUse(); at != before {
			t.Errorf("%s is use", name)
		}
	}
	for name, segment := range map[string]struct {
		on program
		s  segment
	}{
		"data":                {onNIC, w.fromClient("PA", 1001, 5001, 1, 2, 3)},
		"data of the pod":     {onPod1, w.fromPod(1, "PA", 5001, 1001, 1, 2, 3)},
		"keepalive":           {onNIC, w.fromClient("A", 1000, 5001)},
		"the client's window": {onNIC, w.fromClient("A", 1001, 5001)},
	} {
		before := w.lastUse()
		eventually(t, func() error {
			w.wantRun(segment.on, segment.s.frame(), tcxRedirect)
			if w.lastUse() == before {
				return fmt.Errorf("%s is no use", name)
			}
			return nil
		})
	}
}

// wantPeer checks the address that a pod has seen as its client's.
func wantPeer(t *testing.T, from <-chan netip.AddrPort, itself bool, other netip.Addr) {
	t.Helper()
	select {
	case a := <-from:
		if itself != hairpinRange.Contains(a.Addr()) || !itself && a.Addr() != other {
			t.Errorf("the pod sees %v", a)
		}
	case <-time.After(time.Minute):
		t.Fatal("no connection")
	}
}

// A pod that connects to its own service may get itself. Its kernel takes nothing from outside that has its address.
func TestPodsReachThemselvesByTheirService(t *testing.T) {
	for _, mode := range []string{"one machine", "cluster", "cluster with shortcut"} {
		t.Run(mode, func(t *testing.T) {
			n := newNetwork(t, XDPOff, 1500)
			if mode != "one machine" {
				n.must(n.g.Close())
				n.must(removeLinks(&n.cfg))
				n.cfg.EncapPort, n.cfg.NodeAddr = encapPort, netip.MustParseAddr(nodeAddr)
				n.cfg.Shortcut = mode != "cluster"
				n.open()
				sh(t, `sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0
					sysctl -qw net.ipv4.conf.pod1.rp_filter=0 net.ipv4.conf.pod2.rp_filter=0
					ip route replace %v dev pod1; ip route replace %v dev pod2`, podAt[1].Addr(), podAt[2].Addr())
				t.Cleanup(func() { sh(t, "sysctl -qw net.ipv4.ip_forward=0 net.ipv4.conf.all.rp_filter=1") })
			}
			_, err := n.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Retries: 2})
			n.must(err)
			from1 := echo(n, podNS(1), podAt[1])
			n.addPod(vip, 1)
			// Its SYN waits for the pod itself.
			waiting := visit(podNS(1), vip, 1<<20)
			n.ev.await(t, EventWake, 1)
			if released, err := n.g.Serve(vip, 1); err != nil || released != 1 {
				t.Errorf("%d SYNs released, %v", released, err)
			}
			n.must(<-waiting)
			wantPeer(t, from1, true, netip.Addr{})
			n.must(<-visit(podNS(1), vip, 1<<20))
			wantPeer(t, from1, true, netip.Addr{})
			n.wantClosed(1, 2)

			// With two pods it gets the one with fewer connections.
			from2 := echo(n, podNS(2), podAt[2])
			n.addPod(vip, 2)
			_, err = n.g.Serve(vip, 2)
			n.must(err)
			var open []*net.TCPConn
			for range 8 {
				c, err := dial(podNS(1), vip)
				n.must(err)
				open = append(open, c)
			}
			for i, want := range []uint32{4, 4} {
				eventually(t, func() error {
					c, err := n.g.PodCounters(vip, uint64(i+1))
					if err == nil && c.Open != want {
						err = fmt.Errorf("pod %d has %d connections, want %d", i+1, c.Open, want)
					}
					return err
				})
			}
			most, _, err := n.g.Connections(10)
			if err != nil || len(most) != 1 || most[0].Client != podAt[1].Addr() || most[0].Open != 8 {
				t.Errorf("connections: %v, %v", most, err)
			}
			for _, c := range open {
				n.must(exchange(c, 1000))
			}
			for range 4 {
				wantPeer(t, from1, true, netip.Addr{})
				wantPeer(t, from2, false, podAt[1].Addr())
			}
		})
	}
}

// A connection of a pod to itself ends at both ends when its service leaves the address.
func TestConnectionsOfPodsToThemselvesAreEnded(t *testing.T) {
	n := newNetwork(t, XDPOff, 1500)
	_, err := n.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100})
	n.must(err)
	ended := make(chan error, 1)
	serveIn(n, podNS(1), podAt[1], func(c net.Conn) {
		_, err := io.ReadAll(c)
		ended <- err
	})
	n.addPod(vip, 1)
	_, err = n.g.Serve(vip, 1)
	n.must(err)
	c, err := dial(podNS(1), vip)
	n.must(err)
	defer c.Close()
	eventually(t, func() error {
		if p, err := n.g.PodCounters(vip, 1); err != nil || p.Open != 1 {
			return fmt.Errorf("%d connections, %w", p.Open, err)
		}
		return nil
	})
	if got, err := n.g.EndFlows(vip); err != nil || got != 1 {
		t.Errorf("%d ended, %v", got, err)
	}
	n.must(c.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the pod as client: %v", err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the pod as server: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the pod's server is not told")
	}
}

func TestOnlyThePodItselfUsesItsHairpin(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1)
	own := w.syn(1000)
	own.from = netip.AddrPortFrom(podAt[1].Addr(), 40000)
	out := w.wantRun(onPod1, own.frame(), tcxRedirect)
	if !bytes.Equal(out[:6], podMAC[1]) {
		t.Errorf("the SYN goes to %x", out[:6])
	}
	w.wantCounts(0, 1, 0)
	// A retransmission is the same flow.
	w.wantRun(onPod1, own.frame(), tcxRedirect)
	w.wantCounts(0, 1, 0)
	if got, _ := w.run(onPod2, own.frame()); got != tcxDrop {
		t.Errorf("pod 2 with pod 1's address: verdict %d", got)
	}
	w.wantCounts(0, 1, 0)
	// Data that belongs to no flow is refused.
	stray := strayData(w)
	stray.from = netip.AddrPortFrom(podAt[1].Addr(), 50000)
	w.wantRun(onPod1, stray.frame(), tcxRedirect)
	if w.counted()["stray"] != 1 {
		t.Errorf("counted %v", w.counted())
	}
}
