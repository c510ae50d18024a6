// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func byEdge(c *Config) { c.RepliesByEdge = true }

// The home node sends each segment of a pod by the edge node, also what a node that is gone would not pass on.
func TestRepliesGoBackByTheEdgeNode(t *testing.T) {
	w := newRemoteWorld(t, byEdge)
	w.service(vip, 100, 100)
	w.addPod(vip, 1)
	w.before = w.counters()
	for _, s := range []segment{w.syn(1000), w.fromClient("A", 1001, 5001)} {
		out := w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, bare(s)), tcxRedirect)
		if s.flags != "S" {
			continue
		}
		if m := mssOf(t, out); m != 1420 {
			t.Errorf("the pod learns the MSS %d", m)
		}
		w.wantRun(onPod1, w.fromPod(1, "SA", 5000, 1001).frame(), tcxRedirect)
	}
	for _, s := range []segment{
		w.fromPod(1, "A", 5001, 1001),
		w.fromPod(1, "PA", 5001, 1001, make([]byte, 1380)...),
		w.fromPod(1, "FA", 6381, 1001),
		w.fromPod(1, "FA", 6381, 1001), // retransmitted
	} {
		back := w.unwrap(w.wantRun(onPod1, bare(s), tcxRedirect), toClientType, 0, 1, bare(s))
		if !bytes.Equal(back, bare(w.asSent(s))) {
			t.Errorf("%s became %x", s.flags, back)
		}
	}
	// The edge node still learns from the home node how the flow ends.
	w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, bare(w.fromClient("FA", 1001, 6382))), tcxRedirect)
	last := bare(w.fromPod(1, "A", 6382, 1002))
	w.unwrap(w.wantRun(onPod1, last, tcxRedirect), toClientType, closes, 1, last)
	w.wantCounts(0, 0, 1)
	if got := w.counted(); len(got) > 0 {
		t.Errorf("counted %v", got)
	}
}

// The edge node passes all segments on, and those of a flow that it has forgotten by its routes.
func TestEdgeNodePassesRepliesOn(t *testing.T) {
	w := newRemoteWorld(t, byEdge)
	w.remote()
	w.before = w.counters()
	reply := func(flags string, seq, ack uint32, payload ...byte) []byte {
		return bare(w.asSent(w.fromPod(1, flags, seq, ack, payload...)))
	}
	pass := func(frame []byte) []byte {
		t.Helper()
		out := w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, frame), tcxRedirect)
		if !bytes.Equal(out[12:], frame[12:]) {
			t.Errorf("became\n%x from\n%x", out, frame)
		}
		return out
	}
	w.wantRun(onNIC, w.syn(1000).frame(), tcxRedirect)
	pass(reply("SA", 5000, 1001))
	w.wantRun(onNIC, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
	for i := range uint32(30) { // more than the client has acknowledged
		if out := pass(reply("PA", 5001+1000*i, 1001, make([]byte, 1000)...)); !bytes.Equal(out[:6], clientMAC) {
			t.Errorf("goes to %x", out[:6])
		}
	}
	w.wantRun(onNIC, w.fromClient("A", 1001, 35001).frame(), tcxRedirect)
	w.wantCounts(1, 0, 1)
	if got := w.counted(); len(got) > 0 {
		t.Errorf("counted %v", got)
	}
	w.forgetFlows()
	for _, flags := range []string{"PA", "FA", "RA"} {
		pass(reply(flags, 35001, 1001))
	}
	// A pod's answer to a SYN that this node has forgotten is refused.
	out := w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, reply("SA", 5000, 1001)), tcxRedirect)
	rst := w.unwrap(out, toPodType, 0, 1, reply("SA", 5000, 1001))
	if _, tcp := tcpOf(t, decode(t, rst)); !tcp.RST {
		t.Errorf("the pod gets %x", rst)
	}
	if got := w.counted(); !maps.Equal(got, map[string]uint64{"late_replies": 1}) {
		t.Errorf("counted %v", got)
	}
}

// Replies of a connection leave by the node that announces the VIP, if the node by which it entered has lost it.
func TestRepliesLeaveByTheNodeThatAnnouncesTheVIP(t *testing.T) {
	handshake := func(w *world, on func(s segment)) {
		w.warm(vip, 1)
		on(w.syn(1000))
		w.wantRun(onPod1, w.fromPod(1, "SA", 5000, 1001).frame(), tcxRedirect)
		on(w.fromClient("A", 1001, 5001))
	}
	reply := func(w *world, byOther bool) {
		t.Helper()
		data := w.fromPod(1, "PA", 5001, 1001, 1, 2, 3)
		out := w.wantRun(onPod1, bare(data), tcxRedirect)
		if byOther {
			out = w.unwrap(out, toClientType, 0, 1, bare(data))
		}
		if want := bare(w.asSent(data)); !bytes.Equal(out[14:], want[14:]) {
			t.Errorf("by the other node %v: became %x, want %x", byOther, out, want)
		}
	}
	move := func(w *world, to netip.Addr) { w.must(w.g.SetEdge(vip.Addr(), to)) }
	t.Run("it entered here", func(t *testing.T) {
		w := newRemoteWorld(t, byEdge)
		handshake(w, func(s segment) { w.wantRun(onNIC, s.frame(), tcxRedirect) })
		reply(w, false)
		move(w, thisNode)
		reply(w, false)
		move(w, otherNode)
		reply(w, true)
		move(w, netip.Addr{}) // not known
		reply(w, true)
		move(w, thisNode)
		reply(w, false)
	})
	t.Run("it entered by another node", func(t *testing.T) {
		w := newRemoteWorld(t, byEdge)
		handshake(w, func(s segment) {
			w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, bare(s)), tcxRedirect)
		})
		reply(w, true)
		move(w, thisNode) // which says nothing of a node that did not announce it
		reply(w, true)
		move(w, otherNode)
		reply(w, true)
		move(w, thisNode)
		reply(w, false)
	})
	t.Run("its client is on that node", func(t *testing.T) {
		w := newRemoteWorld(t, byEdge)
		handshake(w, func(s segment) {
			w.wantRun(onNIC, w.wrap(otherNode, toPodType, inside, 1, bare(s)), tcxRedirect)
		})
		move(w, otherNode)
		move(w, thisNode)
		reply(w, true)
	})
	t.Run("its handshake is not complete", func(t *testing.T) {
		w := newRemoteWorld(t, byEdge)
		w.warm(vip, 1)
		move(w, thisNode)
		w.wantRun(onNIC, w.syn(1000).frame(), tcxRedirect)
		move(w, otherNode)
		synack := bare(w.fromPod(1, "SA", 5000, 1001))
		if out := w.wantRun(onPod1, synack, tcxRedirect); len(out) != len(synack) {
			t.Errorf("became %x", out)
		}
	})
	t.Run("replies need no edge node", func(t *testing.T) {
		w := newRemoteWorld(t, nil)
		handshake(w, func(s segment) { w.wantRun(onNIC, s.frame(), tcxRedirect) })
		move(w, thisNode)
		move(w, otherNode)
		reply(w, false)
	})
	t.Run("the VIP is removed", func(t *testing.T) {
		w := newRemoteWorld(t, byEdge)
		w.warm(vip, 1)
		move(w, thisNode)
		w.must(w.g.RemoveService(vip))
		if n := entries[gateAddr, gateVipEdge](w, w.g.objs.VipEdges); n != 0 {
			t.Errorf("%d entries left", n)
		}
	})
}

func TestFormerEdgesAreRemembered(t *testing.T) {
	var e gateVipEdge
	for _, node := range []uint32{1, 1, 2, 3, 2, 4, 5, 6} {
		e = movedEdge(e, node)
	}
	if want := (gateVipEdge{Now: 6, Before: [4]uint32{5, 4, 2, 3}}); e != want {
		t.Errorf("%+v, want %+v", e, want)
	}
	for _, node := range []uint32{2, 7} {
		e = movedEdge(e, node)
	}
	if want := (gateVipEdge{Now: 7, Before: [4]uint32{2, 6, 5, 4}}); e != want {
		t.Errorf("%+v, want %+v", e, want)
	}
}

// A pod on the edge node itself leaves room for encapsulation, as its client may use another edge node later.
func TestSYNToALocalPodLeavesRoomForReplies(t *testing.T) {
	w := newRemoteWorld(t, byEdge)
	w.warm(vip, 1)
	for on, want := range map[program]uint16{onNIC: 1420, onLocal: 1460} {
		s := w.syn(1000).fromOther(50+byte(on), 1)
		for range 2 { // retransmitted
			if m := mssOf(t, w.wantRun(on, s.frame(), tcxRedirect)); m != want {
				t.Errorf("by %v: MSS %d, want %d", on, m, want)
			}
		}
		ack := s
		ack.flags, ack.seq, ack.ack, ack.options = "A", 1001, 5001, nil
		synack := w.fromPod(1, "SA", 5000, 1001)
		synack.to = s.from
		w.wantRun(onPod1, synack.frame(), tcxRedirect)
		w.wantRun(on, ack.frame(), tcxRedirect)
		data := w.fromPod(1, "PA", 5001, 1001, 1, 2, 3)
		data.to = s.from
		if out := w.wantRun(onPod1, bare(data), tcxRedirect); len(out) != len(bare(data)) {
			t.Errorf("by %v: encapsulated: %x", on, out)
		}
	}
}

// checkSources makes the link drop what a node sends from addresses other than its own.
func (c *cluster) checkSources(n *node, own ...netip.Addr) {
	c.Helper()
	sh(c, `ip netns exec lan nft 'table netdev %[1]s
		delete table netdev %[1]s
		table netdev %[1]s {
			chain sources {
				type filter hook ingress device "%[1]s" priority 0
				ip saddr != { %[2]s } counter drop
			}
		}'`, n.name, strings.Trim(strings.ReplaceAll(fmt.Sprint(append(own, n.addr)), " ", ", "), "[]"))
}

// foreign reports whether a node has sent packets from addresses that are not its own.
func (c *cluster) foreign(n *node) bool {
	c.Helper()
	return !strings.Contains(sh(c, "ip netns exec lan nft list table netdev %s", n.name), "counter packets 0 ")
}

// download reads size bytes from a server that sends them, and a byte to it first.
func download(from string, size int64) error {
	conn, err := dial(from, vip)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return err
	}
	if n, err := io.Copy(io.Discard, conn); n != size || err != nil {
		return fmt.Errorf("%d of %d bytes: %w", n, size, err)
	}
	return nil
}

// send runs a server in pod 1 that sends size bytes to each client that has sent one.
func send(t *testing.T, size int) {
	t.Helper()
	data := make([]byte, 1<<20)
	serveIn(t, podNS(1), podAt[1], func(c net.Conn) {
		_, err := io.ReadFull(c, make([]byte, 1))
		for left := size; left > 0 && err == nil; left -= len(data) {
			_, err = c.Write(data[:min(left, len(data))])
		}
	})
}

// In a network that checks sources, only the handshake of a reply sent straight to the client arrives.
func TestSourceChecksDropDirectReplies(t *testing.T) {
	c := newCluster(t, 1500)
	c.podNet(c.home, 1, 1500)
	c.addPod(vip, c.home, 1)
	c.serve(vip, 1)
	c.checkSources(c.home)
	send(t, 1000)
	conn, err := dial("client", vip)
	c.must(err)
	defer conn.Close()
	if _, err := conn.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if !c.foreign(c.home) {
			return fmt.Errorf("nothing was dropped")
		}
		return nil
	})
	c.must(conn.SetDeadline(time.Now().Add(100 * time.Millisecond)))
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("the client got %d bytes", n)
	}
}

// A cold wake, 100 MB and 1,000 connections, with and without offloads.
func TestRepliesByTheEdgeNodePassSourceChecks(t *testing.T) {
	for name, off := range map[string][][2]string{
		"offloads":                   nil,
		"no offload towards clients": {{"edge", "eth0"}, {"client", "eth0"}},
		"no offloads": {{"client", "eth0"}, {"edge", "eth0"}, {"home", "eth0"}, {"pod1", "eth0"},
			{"home", "pod1"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClusterOf(t, 1500, byEdge)
			c.podNet(c.home, 1, 1500)
			for _, d := range off {
				offload(t, d[0], d[1], false)
			}
			c.checkSources(c.home)
			c.checkSources(c.edge, vip.Addr())
			const size = 100 << 20
			send(t, size)
			done := make(chan error, 1)
			go func() { done <- download("client", size) }()
			c.edge.ev.await(t, EventWake, 1)
			c.addPod(vip, c.home, 1)
			c.serve(vip, 1)
			begin := time.Now()
			if err := <-done; err != nil {
				t.Fatalf("%v; counted: %v", err, c.counted())
			}
			t.Logf("100 MiB in %v", time.Since(begin))
			c.wantClosed(1, 1)
			c.wantStraight(false, size)
			for _, n := range []*node{c.edge, c.home} {
				if c.foreign(n) {
					t.Errorf("%s sent from an address that is not its own", n.name)
				}
			}
			c.wantCounted(nil)
		})
	}
}

func TestManyRepliesPassSourceChecks(t *testing.T) {
	const conns, size = 1000, 20_000
	c := newClusterOf(t, 1500, byEdge)
	c.podNet(c.home, 1, 1500)
	c.addPod(vip, c.home, 1)
	c.serve(vip, 1)
	c.checkSources(c.home)
	send(t, size)
	// All of them are open at once.
	var open []*net.TCPConn
	for range conns {
		conn, err := dial("client", vip)
		c.must(err)
		open = append(open, conn)
	}
	c.wantOpen(1, conns)
	errs := make(chan error, conns)
	for _, conn := range open {
		go func() {
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
				errs <- err
				return
			}
			_, err := conn.Write([]byte{1})
			n, readErr := io.Copy(io.Discard, conn)
			if n != size || readErr != nil {
				err = fmt.Errorf("%d of %d bytes: %v, %w", n, size, err, readErr)
			}
			errs <- err
		}()
	}
	for range open {
		c.must(<-errs)
	}
	c.wantClosed(1, conns)
	if c.foreign(c.home) {
		t.Error("the home node sent from an address that is not its own")
	}
}

// The VIP moves from node to node, also to and from the pod's own. Then replies leave by the node that has it, also to
// clients that wait and send nothing: the network drops what any other node sends from the VIP.
func TestRepliesFollowTheEdgeNode(t *testing.T) {
	m := newMovableOf(newClusterOf(t, 1500, byEdge))
	mirror(t, 1)
	m.serve(vip, 1)
	_, err := m.third.g.Serve(vip, 1)
	m.must(err)
	at := m.edge
	m.setEdge(at)
	m.checkSources(m.edge, vip.Addr())
	m.checkSources(m.third)
	m.checkSources(m.home)
	stop, done := make(chan struct{}), make(chan error, 4)
	const busy = 3
	start := func() {
		for range busy {
			conn, err := dial("client", vip)
			m.must(err)
			go func() { done <- mirrored64k(conn, stop) }()
		}
	}
	start()
	idle, err := dial("client", vip)
	m.must(err)
	defer idle.Close()
	moves := []*node{m.third, m.home, m.third, m.edge}
	for _, to := range moves {
		m.checkSources(to, vip.Addr())
		m.move(at, to)
		m.checkSources(at)
		at = to
		m.must(idle.SetDeadline(time.Now().Add(30 * time.Second)))
		if _, err := idle.Write([]byte("on?")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(idle, make([]byte, 3)); err != nil {
			t.Fatalf("at %s: %v; %v, %v", to.name, err, m.counted(), counted(t, m.third.g))
		}
		start() // among them some whose edge node was the pod's own
	}
	idle.Close()
	close(stop)
	for range busy * (1 + len(moves)) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, n := range []*node{m.edge, m.home, m.third} {
		m.wantFlows(n, 1, 0)
	}
	t.Logf("counted %v, third %v", m.counted(), counted(t, m.third.g))
}

// A client reaches a sleeping service by a port of each node, as kube-proxy leads from it to the service address. No
// node sends from the service address.
func TestNodePortsLeadToTheGate(t *testing.T) {
	const nodePort, size = 30080, 1 << 20
	c := newCluster(t, 1500)
	c.podNet(c.home, 1, 1500)
	from := echo(t, podNS(1), podAt[1])
	for _, n := range []*node{c.edge, c.home} {
		c.checkSources(n)
		sh(t, `ip netns exec %[1]s nft 'table ip proxy {
				chain prerouting { type nat hook prerouting priority dstnat
					ip daddr %[2]v tcp dport %[3]d dnat to %[4]v
				}
				chain postrouting { type nat hook postrouting priority srcnat
					ct status dnat masquerade
				}
			}'`, n.name, n.addr, nodePort, vip)
	}
	for wakes, n := range []*node{c.edge, c.home} {
		done := visit("client", netip.AddrPortFrom(n.addr, nodePort), size)
		n.ev.await(t, EventWake, 1)
		c.addPod(vip, c.home, 1)
		if released := c.serve(vip, 1); released != 1 {
			t.Errorf("%s: %d SYNs released", n.name, released)
		}
		if err := <-done; err != nil {
			t.Fatalf("%s: %v; counted: %v", n.name, err, c.counted())
		}
		if a := (<-from).Addr(); a != n.addr {
			t.Errorf("%s: the pod saw %v", n.name, a)
		}
		eventually(t, func() error {
			p, err := n.g.PodCounters(vip, 1)
			if err == nil && (p.Open != 0 || p.NewFlows != 1) {
				err = fmt.Errorf("wake %d at %s: %+v", wakes, n.name, p)
			}
			return err
		})
		for _, n := range []*node{c.edge, c.home} {
			c.must(n.g.RemovePod(vip, 1))
			if c.foreign(n) {
				t.Errorf("%s sent from an address that is not its own", n.name)
			}
		}
	}
	c.wantCounted(nil)
}
