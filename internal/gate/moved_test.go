// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// scalesAt is the offset of the window scales in an encapsulated frame.
const scalesAt = ethernetHeader + 20 + 8 + 3

// pendingQueries counts the entries of the map of that name.
func (w *world) pendingQueries() int {
	return entries[gateFlowKey, gatePendingQuery](w, w.g.objs.PendingQueries)
}

// runMarked runs a program on a frame with a mark and returns the frame that is sent, or nil.
func (w *world) runMarked(p program, frame []byte, mark uint32) []byte {
	w.Helper()
	w.mark = mark
	defer func() { w.mark = 0 }()
	if verdict, out := w.run(p, frame); verdict == tcxRedirect {
		return out
	}
	return nil
}

// If a home node claims the flow, the edge node takes it over. Otherwise a later segment gets a RST.
func TestUnknownFlowIsQueriedAtHomeNodes(t *testing.T) {
	all := newRemoteWorld(t, nil)
	begin := func(t *testing.T) *world {
		w := all.in(t)
		w.remote()
		for _, k := range []segment{w.syn(0), w.syn(0).fromOther(1, 2)} {
			_ = w.g.objs.PendingQueries.Delete(flowKey(k.from, vip))
		}
		w.must(w.g.objs.QueryBudget.Put(uint32(0), gateQueryCount{}))
		w.before = w.counters()
		return w
	}
	wantCounted := func(t *testing.T, w *world, want map[string]uint64) {
		t.Helper()
		if got := w.counted(); !maps.Equal(got, want) {
			t.Errorf("counted %v, want %v", got, want)
		}
	}
	age := func(w *world, by time.Duration) {
		var a gatePendingQuery
		k := flowKey(client, vip)
		w.must(w.g.objs.PendingQueries.Lookup(k, &a))
		a.At -= uint64(by)
		w.must(w.g.objs.PendingQueries.Put(k, a))
	}
	t.Run("no node claims it", func(t *testing.T) {
		w := begin(t)
		s := strayData(w)
		// Two rounds of queries may be lost, however many there are in each.
		for range 3 {
			for range 3 {
				w.wantRun(onNIC, s.frame(), tcxDrop)
			}
			age(w, 200*time.Millisecond)
		}
		resetTo(t, s, w.wantRun(onNIC, s.frame(), tcxRedirect))
		wantCounted(t, w, map[string]uint64{"asked": 9, "stray": 1})
		// Later, the ports may be a new connection's.
		for range 3 {
			w.wantRun(onNIC, s.frame(), tcxDrop)
			age(w, 121*time.Second)
		}
		for range 2 {
			w.wantRun(onNIC, s.frame(), tcxDrop)
			age(w, 200*time.Millisecond)
		}
		wantCounted(t, w, map[string]uint64{"asked": 14, "stray": 1})
	})
	t.Run("no query is sent", func(t *testing.T) {
		for name, c := range map[string]struct {
			on    program
			flags string
			alone bool
		}{"no remote pod": {onNIC, "PA", true}, "of this node": {onLocal, "PA", false},
			"neither ACK nor RST": {onNIC, "F", false}, "SYN-ACK": {onNIC, "SA", false}} {
			w := begin(t)
			if c.alone {
				w.must(w.g.RemovePod(vip, 1))
			}
			s := w.fromClient(c.flags, 7, 8)
			resetTo(t, s, w.wantRun(c.on, s.frame(), tcxRedirect))
			if got := w.counted(); !maps.Equal(got, map[string]uint64{"stray": 1}) || w.pendingQueries() != 0 {
				t.Errorf("%s: counted %v, %d pending", name, got, w.pendingQueries())
			}
		}
	})
	t.Run("the copy", func(t *testing.T) {
		w := begin(t)
		s := strayData(w)
		w.wantRun(onNIC, s.frame(), tcxDrop)
		f := s.frame()
		out := w.runMarked(onReleased, f, 1)
		if got := w.unwrap(out, flowQueryType, 0, 0, f); !bytes.Equal(got, f) {
			t.Errorf("became %x from %x", got, f)
		}
		for _, mark := range []uint32{0, 2, 65, ^uint32(0)} { // there is only one home node
			if out := w.runMarked(onReleased, f, mark); out != nil {
				t.Errorf("mark %d: sent %x", mark, out)
			}
		}
	})
	t.Run("a node claims it", func(t *testing.T) {
		w := begin(t)
		s := w.fromClient("PA", 1001, 5001, 1, 2, 3)
		f := bare(s)
		w.wantRun(onNIC, s.frame(), tcxDrop)
		claim := w.wrap(otherNode, flowClaimType, 0, 1, f)
		claim[scalesAt] = 7 | 9<<4
		if got := w.unwrap(w.wantRun(onNIC, claim, tcxRedirect), toPodType, 0, 1, f); !bytes.Equal(got, f) {
			t.Errorf("became %x from %x", got, f)
		}
		w.wantCounts(1, 0, 0)
		got, _ := w.flow(client, vip)
		if got.Wscale != [2]uint8{7, 9} || got.Origin.Ifindex != uint32(w.nic.Attrs().Index) ||
			!bytes.Equal(got.Origin.ClientMac[:], clientMAC) || w.pendingQueries() != 0 {
			t.Errorf("flow %+v, %d pending", got, w.pendingQueries())
		}
		// A second segment that was queried meanwhile goes the same way, and later ones go there at once.
		w.wantRun(onNIC, claim, tcxRedirect)
		next := w.fromClient("PA", 1004, 9000, 1)
		next.padding = 0
		w.unwrap(w.wantRun(onNIC, next.frame(), tcxRedirect), toPodType, 0, 1, next.frame())
		w.wantCounts(1, 0, 0)
		// The pod's FIN passes here, and the client's answer ends the flow.
		fin := w.asSent(w.fromPod(1, "FA", 9000, 1005)).frame()
		if out := w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, fin), tcxRedirect); !bytes.Equal(out[:6],
			clientMAC) {
			t.Errorf("the pod's FIN went to %x", out[:6])
		}
		w.wantRun(onNIC, w.fromClient("FA", 1005, 9001).frame(), tcxRedirect)
		w.wantRun(onNIC, w.wrap(otherNode, toClientType, closes, 1, w.asSent(w.fromPod(1, "A", 9001, 1006)).frame()),
			tcxRedirect)
		w.wantCounts(0, 0, 0)
		wantCounted(t, w, map[string]uint64{"asked": 1, "moved": 1})
	})
	t.Run("the client resets it", func(t *testing.T) {
		w := begin(t)
		s := w.fromClient("R", 1001, 0)
		w.wantRun(onNIC, s.frame(), tcxDrop)
		w.unwrap(w.wantRun(onNIC, w.wrap(otherNode, flowClaimType, 0, 1, bare(s)), tcxRedirect), toPodType, 0,
			1, bare(s))
		w.wantCounts(0, 0, 0)
		wantCounted(t, w, map[string]uint64{"asked": 1, "moved": 1})
	})
	t.Run("unsolicited claims", func(t *testing.T) {
		w := begin(t)
		f := bare(strayData(w))
		w.wantRun(onNIC, w.wrap(otherNode, flowClaimType, 0, 1, f), tcxDrop)
		w.wantRun(onNIC, f, tcxDrop)
		w.wantRun(onNIC, w.wrap(otherNode, flowClaimType, 0, 7, f), tcxDrop) // an unknown pod
		w.must(w.g.SetNodes(plain(otherNode, stranger)))
		defer func() { w.must(w.g.SetNodes(plain(otherNode))) }()
		w.wantRun(onNIC, w.wrap(stranger, flowClaimType, 0, 1, f), tcxDrop) // another node's pod
		if _, there := w.flow(client, vip); there {
			t.Error("a flow was entered")
		}
		// The client starts anew from the same port, and the pod of its new flow is here.
		w.addPod(vip, 2)
		w.serve(vip, 2)
		w.must(w.g.Drain(vip, 1))
		w.wantRun(onNIC, w.syn(9000).frame(), tcxRedirect)
		w.wantRun(onNIC, w.wrap(otherNode, flowClaimType, 0, 1, f), tcxDrop)
		w.wantCounts(0, 0, 0)
	})
	t.Run("a packet of many segments", func(t *testing.T) {
		w := begin(t)
		w.segs = 40
		w.wantRun(onNIC, strayData(w).frame(), tcxDrop)
		var c gateQueryCount
		w.must(w.g.objs.QueryBudget.Lookup(uint32(0), &c))
		if c.Packets != 40 {
			t.Errorf("%d segments charged, want 40", c.Packets)
		}
	})
	t.Run("an icmp error", func(t *testing.T) {
		w := begin(t)
		f := w.fragNeeded(w.asSent(podData(w)), 1400)
		w.wantRun(onNIC, f, tcxDrop)
		wantCounted(t, w, map[string]uint64{"asked": 1})
		if got := w.unwrap(w.runMarked(onReleased, f, 1), flowQueryType, 0, 0, f); !bytes.Equal(got, f) {
			t.Errorf("became %x from %x", got, f)
		}
		if out := w.runMarked(onReleased, f, 2); out != nil { // there is only one home node
			t.Errorf("sent %x", out)
		}
		w.must(w.g.RemovePod(vip, 1))
		w.wantRun(onNIC, f, tcxDrop)
		wantCounted(t, w, map[string]uint64{"asked": 1})
	})
	t.Run("a flood at another service", func(t *testing.T) {
		w := begin(t)
		w.service(vip2, 100, 100)
		w.must(w.g.AddPod(Pod{ID: 2, Service: vip2, Addr: podAt[2], Node: otherNode}))
		w.serve(vip2, 2)
		at, _ := w.g.services.index(vip)
		other := strayData(w)
		other.to = vip2
		eventually(t, func() error { // until all of it is in one window
			w.wantRun(onNIC, strayData(w).frame(), tcxDrop)
			var now, then gateQueryCount
			w.must(w.g.objs.QueryBudget.Lookup(uint32(0), &now))
			w.must(w.g.objs.QueryShares.Put(at, gateQueryCount{Window: now.Window, Packets: 256}))
			w.before = w.counters()
			w.wantRun(onNIC, strayData(w).frame(), tcxDrop)
			w.wantRun(onNIC, other.frame(), tcxDrop)
			got := w.counted()
			w.must(w.g.objs.QueryBudget.Lookup(uint32(0), &then))
			if then.Window != now.Window {
				return fmt.Errorf("windows %d and %d", now.Window, then.Window)
			}
			if !maps.Equal(got, map[string]uint64{"asked": 1, "ask_limit": 1}) || then.Packets != now.Packets+1 {
				t.Errorf("counted %v, %+v, then %+v", got, now, then)
			}
			return nil
		})
	})
	t.Run("a flood", func(t *testing.T) {
		w := begin(t)
		w.segs = 8 // so that the budget does not last for a window, however slow the machine is
		dropped, answered := 0, 0
		var windows uint64
		first := uint64(0)
		for i := range 20000 {
			s := strayData(w)
			s.from = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 50, byte(i >> 8), byte(i)}), 1000)
			verdict, _ := w.run(onNIC, s.frame())
			if verdict == tcxDrop {
				dropped++
			} else {
				answered++
			}
			var a gateQueryCount
			w.must(w.g.objs.QueryBudget.Lookup(uint32(0), &a))
			if first == 0 {
				first = a.Window
			}
			windows = a.Window - first + 1
		}
		got := w.counted()
		if limit := windows * 1024 / uint64(w.segs); answered > 0 || dropped != 20000 || got["asked"] > limit ||
			got["asked"]+got["ask_limit"] != 20000 || got["ask_limit"] == 0 {
			t.Errorf("in %d windows: %d dropped, %d answered, counted %v", windows, dropped, answered, got)
		}
		if n := w.pendingQueries(); n > 8192 {
			t.Errorf("%d pending queries", n)
		}
		t.Logf("in %d windows of 100 ms: %v", windows, got)
	})
}

// The home node checks the error as if it had come by the edge node of the flow.
func TestHomeNodeTakesICMPErrorsByAnyEdgeNode(t *testing.T) {
	w := newRemoteWorld(t, nil)
	connected(w)
	w.sent(podData(w))
	f := w.fragNeeded(w.asSent(podData(w)), 1400)
	icmpCarried(w, f, w.wantRun(onNIC, w.wrap(otherNode, flowQueryType, 0, 0, f), tcxRedirect))
	forged := podData(w)
	forged.seq += 100000
	f = w.fragNeeded(w.asSent(forged), 1400)
	w.wantRun(onNIC, w.wrap(otherNode, flowQueryType, 0, 0, f), tcxDrop)
	// One of no flow here is not passed on.
	other := podData(w)
	other.to = netip.AddrPortFrom(client.Addr(), 9)
	f = w.fragNeeded(w.asSent(other), 1400)
	w.wantRun(onNIC, w.wrap(otherNode, flowQueryType, 0, 0, f), tcxDrop)
	if got := w.counted(); got["asked"] != 0 || got["icmp_errors"] != 1 {
		t.Errorf("counted %v", got)
	}
}

// The segment must also fit the flow.
func TestHomeNodeClaimsOnlyItsOpenFlows(t *testing.T) {
	w := newRemoteWorld(t, nil)
	w.service(vip, 100, 100)
	w.addPod(vip, 1)
	w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, w.syn(1000).frame()), tcxRedirect)
	query := func(s segment) (uint32, []byte) { return w.run(onNIC, w.wrap(otherNode, flowQueryType, 0, 0, bare(s))) }
	wantClaim := func(what string, s segment, seen byte, want bool) {
		t.Helper()
		before, _ := w.flow(client, vip)
		verdict, out := query(s)
		if want != (verdict == tcxRedirect) {
			t.Errorf("%s: verdict %d, want a claim: %v", what, int32(verdict), want)
		} else if want {
			if got := out[scalesAt]; got != 0x77 && got != 0xff {
				t.Errorf("%s: scales %#x", what, got)
			}
			out[scalesAt] = 0
			if got := w.unwrap(out, flowClaimType, seen, 1, bare(s)); !bytes.Equal(got, bare(s)) {
				t.Errorf("%s: became %x", what, got)
			}
		}
		if after, _ := w.flow(client, vip); after != before {
			t.Errorf("%s: the flow has changed: %+v, before %+v", what, after, before)
		}
	}
	ack := w.fromClient("A", 1001, 5001)
	wantClaim("before the SYN-ACK", ack, 0, false)
	synack := w.fromPod(1, "SA", 5000, 1001)
	synack.options = synOptions
	w.wantRun(onPod1, synack.frame(), tcxRedirect)
	wantClaim("the handshake's last ACK", ack, 0, true)
	wantClaim("an ACK of no data", w.fromClient("A", 1001, 5000), 0, false)
	w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, bare(ack)), tcxRedirect)
	w.wantRun(onPod1, w.fromPod(1, "PA", 5001, 1001, make([]byte, 1000)...).frame(), tcxRedirect)
	wantClaim("data", w.fromClient("PA", 1001, 6001, 1, 2, 3), 0, true)
	wantClaim("data after a gap", w.fromClient("PA", 3000, 6001, 1), 0, true)
	wantClaim("RST", w.fromClient("R", 1001, 0), 0, true)
	wantClaim("FIN", w.fromClient("FA", 1001, 5001), 0, true)
	wantClaim("outside the window", w.fromClient("PA", 1001+1<<30, 6001, 1), 0, false)
	wantClaim("before the window", w.fromClient("PA", 1<<32+1001-1<<22, 6001, 1), 0, false)
	wantClaim("RST outside the window", w.fromClient("R", 1001+1<<30, 0), 0, false)
	wantClaim("an ACK of data that was not sent", w.fromClient("A", 1001, 6002), 0, false)
	wantClaim("SYN-ACK", w.fromClient("SA", 1001, 6001), 0, false)
	wantClaim("of another client", w.fromClient("PA", 1001, 6001).fromOther(9, 9), 0, false)
	w.wantRun(onPod1, w.fromPod(1, "FA", 6001, 1001).frame(), tcxRedirect)
	wantClaim("after the pod's FIN", w.fromClient("A", 1001, 6002), 2, true)
	w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, bare(w.fromClient("FA", 1001, 6002))), tcxRedirect)
	w.wantRun(onPod1, w.fromPod(1, "A", 6002, 1002).frame(), tcxRedirect)
	wantClaim("closed", w.fromClient("FA", 1001, 6002), 0, false)
	if verdict, _ := w.run(onNIC, w.wrap(stranger, flowQueryType, 0, 0, bare(ack))); verdict != tcxDrop {
		t.Error("an unknown node got an answer")
	}
}

// The edge node may be gone.
func TestRetransmittedFINGoesToTheClient(t *testing.T) {
	w := newRemoteWorld(t, nil)
	w.service(vip, 100, 100)
	w.addPod(vip, 1)
	for _, s := range []segment{w.syn(1000), w.fromClient("A", 1001, 5001)} {
		w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, bare(s)), tcxRedirect)
		if s.flags == "S" {
			w.wantRun(onPod1, w.fromPod(1, "SA", 5000, 1001).frame(), tcxRedirect)
		}
	}
	fin := w.fromPod(1, "FA", 5001, 1001, 1, 2, 3)
	w.unwrap(w.wantRun(onPod1, bare(fin), tcxRedirect), toClientType, 0, 1, bare(fin))
	w.straight(bare(fin), w.wantRun(onPod1, bare(fin), tcxRedirect))
}

// The client may use another edge node later.
func TestSYNACKOfALocalPodLeavesRoomForEncapsulation(t *testing.T) {
	w := newRemoteWorld(t, nil)
	w.warm(vip, 1)
	for on, want := range map[program]uint16{onNIC: 1420, onLocal: 1460} {
		s := w.syn(1000).fromOther(50+byte(on), 1)
		w.wantRun(on, s.frame(), tcxRedirect)
		synack := w.fromPod(1, "SA", 5000, 1001)
		synack.to, synack.options = s.from, synOptions
		if m := mssOf(t, w.wantRun(onPod1, synack.frame(), tcxRedirect)); m != want {
			t.Errorf("by %v: MSS %d, want %d", on, m, want)
		}
	}
}

// movable is a cluster with a third node, to which VIPs can move.
type movable struct {
	*cluster
	third *node
}

func newMovable(t *testing.T) *movable { return newMovableOf(newCluster(t, 1500)) }

func newMovableOf(c *cluster) *movable {
	m := &movable{cluster: c, third: c.join("third", netip.MustParseAddr("10.46.200.3"), 1500)}
	c.podNet(c.home, 1, 1500)
	c.podNet(c.edge, 2, 1500)
	for i, on := range []*node{nil, c.home, c.edge} {
		if on == nil {
			continue
		}
		c.addPod(vip, on, i)
		c.in(m.third, func() error {
			return m.third.g.AddPod(Pod{ID: uint64(i), Service: vip, Addr: podAt[i], Node: on.addr})
		})
	}
	return m
}

// move moves the VIP to another node and waits until the client knows.
func (m *movable) move(from, to *node) {
	m.Helper()
	if from != nil {
		m.must(from.g.AnnounceVIP(vip.Addr(), false))
	}
	m.must(to.g.AnnounceVIP(vip.Addr(), true))
	m.setEdge(to)
	var mac net.HardwareAddr
	m.in(to, func() error { mac = linkByName(m, "eth0").Attrs().HardwareAddr; return nil })
	eventually(m, func() error {
		if r := sh(m, "ip -n client neigh show %v", vip.Addr()); !bytes.Contains([]byte(r), []byte(mac.String())) {
			return fmt.Errorf("the client's neighbor: %s", r)
		}
		return nil
	})
}

// setEdge tells all gates which node announces the VIP.
func (m *movable) setEdge(to *node) {
	m.Helper()
	for _, n := range []*node{m.edge, m.home, m.third} {
		m.must(n.g.SetEdge(vip.Addr(), to.addr))
	}
}

// wantFlows waits until a node has a number of open flows of a pod.
func (m *movable) wantFlows(n *node, pod int, open uint32) {
	m.Helper()
	eventually(m, func() error {
		p, err := n.g.PodCounters(vip, uint64(pod))
		if err == nil && (p.Open != open || p.HalfOpen != 0) {
			err = fmt.Errorf("%s: pod %d: %d open, %d half-open; want %d open", n.name, pod, p.Open, p.HalfOpen, open)
		}
		return err
	})
}

// mirror runs a server in pod i that sends back what it receives.
func mirror(t *testing.T, i int) {
	t.Helper()
	serveIn(t, podNS(i), podAt[i], func(c net.Conn) { _, _ = io.Copy(c, c) })
}

// The VIP moves from an edge node to a third one, back, and to the pod's own node, with the pod on the edge node and
// on another. Afterwards all nodes have the right counts.
func TestConnectionsSurviveMovesOfTheirVIP(t *testing.T) {
	for _, offloads := range []bool{true, false} {
		for pod, at := range []string{1: "elsewhere", 2: "on the edge node"} {
			if at == "" {
				continue
			}
			t.Run(fmt.Sprintf("pod %s, offloads %v", at, offloads), func(t *testing.T) {
				m := newMovable(t)
				for _, d := range [][2]string{{"client", "eth0"}, {"edge", "eth0"}, {"home", "eth0"}, {"third", "eth0"},
					{"pod1", "eth0"}, {"home", "pod1"}, {"pod2", "eth0"}, {"edge", "pod2"}} {
					offload(t, d[0], d[1], offloads)
				}
				mirror(t, pod)
				m.serve(vip, pod)
				stop, done := make(chan struct{}), make(chan error, 4)
				const busy, silent = 3, 5
				for range busy {
					conn, err := dial("client", vip)
					m.must(err)
					go func() { done <- mirrored64k(conn, stop) }()
				}
				var idle []*net.TCPConn
				for range silent {
					conn, err := dial("client", vip)
					m.must(err)
					idle = append(idle, conn)
				}
				owner := map[int]*node{1: m.home, 2: m.edge}[pod]
				at := m.edge
				for _, to := range []*node{m.third, m.edge, m.third, m.home, m.third, m.edge} {
					m.move(at, to)
					for _, c := range idle {
						m.must(c.SetDeadline(time.Now().Add(20 * time.Second)))
						if _, err := c.Write([]byte("on?")); err != nil {
							t.Fatal(err)
						}
						if _, err := io.ReadFull(c, make([]byte, 3)); err != nil {
							t.Fatalf("at %s: %v; %v, %v", to.name, err, m.counted(), counted(t, m.third.g))
						}
					}
					for _, n := range []*node{m.edge, m.home, m.third} {
						want := uint32(0)
						if n == to || n == owner {
							want = busy + silent
						}
						if n == owner || n != at { // segments through the previous edge node may arrive late
							m.wantFlows(n, pod, want)
						}
					}
					at = to
				}
				close(stop)
				for range busy {
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
				for _, c := range idle {
					c.Close()
				}
				for _, n := range []*node{m.edge, m.home, m.third} {
					m.wantFlows(n, pod, 0)
				}
				t.Logf("counted %v, third %v", m.counted(), counted(t, m.third.g))
			})
		}
	}
}

// Whatever the client or pod does afterwards, the home node's count becomes right.
func TestConnectionsSurviveTheEdgeNodesDeath(t *testing.T) {
	m := newMovable(t)
	m.serve(vip, 1)
	l := listenIn(t, podNS(1), podAt[1])
	dialed := func() (client *net.TCPConn, server net.Conn) {
		t.Helper()
		client, err := dial("client", vip)
		m.must(err)
		server, err = l.Accept()
		m.must(err)
		m.must(client.SetDeadline(time.Now().Add(30 * time.Second)))
		m.must(server.SetDeadline(time.Now().Add(30 * time.Second)))
		return client, server
	}
	var clients []*net.TCPConn
	var servers []net.Conn
	for range 5 {
		c, s := dialed()
		clients, servers = append(clients, c), append(servers, s)
	}
	m.wantFlows(m.home, 1, 5)
	sh(t, "ip -n lan link set edge down")
	m.move(nil, m.third)
	// The connection continues.
	if _, err := clients[0].Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(servers[0], make([]byte, 1)); err != nil {
		t.Errorf("what the client sent: %v", err)
	}
	m.wantFlows(m.third, 1, 1)
	// The client resets one, and closes one.
	m.must(clients[1].SetLinger(0))
	clients[1].Close()
	if _, err := servers[1].Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client has reset: %v", err)
	}
	m.wantFlows(m.home, 1, 4)
	clients[2].Close()
	if _, err := servers[2].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the client has closed: %v", err)
	}
	servers[2].Close()
	m.wantFlows(m.home, 1, 3)
	// The pod closes one.
	servers[3].Close()
	if _, err := clients[3].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the pod has closed: %v", err)
	}
	clients[3].Close()
	m.wantFlows(m.home, 1, 2)
	m.wantFlows(m.third, 1, 1)
	// The home node has forgotten one: the client gets a RST.
	m.must(m.home.g.objs.Flows.Delete(flowKey(clients[4].LocalAddr().(*net.TCPAddr).AddrPort(), vip)))
	if _, err := clients[4].Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if _, err := clients[4].Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a forgotten connection: %v", err)
	}
	t.Logf("the client of a forgotten connection got a RST after %v; third counted %v", time.Since(begin),
		counted(t, m.third.g))
}
