// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/sources"
)

// The IDs of fronts on one machine.
var frontID, otherFrontID = FrontIDs(netip.Addr{})[0], FrontIDs(netip.Addr{})[1]

// answering listens in a network namespace and answers each connection by a byte, until the client has left.
func answering(n *network, ns string, at netip.AddrPort, with byte) net.Listener {
	n.Helper()
	var l net.Listener
	n.must(inNamespace(ns, func() (err error) { l, err = net.Listen("tcp4", at.String()); return err }))
	n.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = c.Write([]byte{with})
				_, _ = io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
	return l
}

// answerTo returns the name of the server that answers a connection.
func answerTo(n *network, from string, to netip.AddrPort) string {
	n.Helper()
	c, err := dial(from, to)
	n.must(err)
	defer c.Close()
	n.must(c.SetDeadline(time.Now().Add(time.Minute)))
	b := make([]byte, 1)
	_, err = io.ReadFull(c, b)
	n.must(err)
	return string(b)
}

// frontedNetwork is a network with a service of one pod, pod 1, and a front in the network of pod 2.
func frontedNetwork(t *testing.T) *network {
	n := newNetwork(t, XDPAuto, 1500)
	_, err := n.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Proof: ProofNever})
	n.must(err)
	n.addPod(vip, 1)
	n.addFront(vip, frontID, 2)
	n.must(n.g.ServeFront(vip, frontID))
	return n
}

// addFront makes the network of a pod that of a service's front, which does not serve yet.
func (n *network) addFront(service netip.AddrPort, id uint64, i int) {
	n.Helper()
	host := linkByName(n, podNS(i)).Attrs()
	var mac net.HardwareAddr
	n.must(inNamespace(podNS(i), func() error { mac = linkByName(n, "eth0").Attrs().HardwareAddr; return nil }))
	n.must(n.g.AddPod(Pod{ID: id, Service: service, Addr: podAt[i], Ifindex: host.Index, MAC: mac,
		HostMAC: host.HardwareAddr}))
}

func TestClientsGetTheFrontAndTheFrontGetsThePod(t *testing.T) {
	n := frontedNetwork(t)
	answering(n, podNS(1), podAt[1], 'p')
	answering(n, podNS(2), podAt[2], 'f')
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	for from, want := range map[string]string{"client": "f", podNS(2): "p"} {
		if got := answerTo(n, from, vip); got != want {
			t.Errorf("%s got %s, want %s", from, got, want)
		}
	}
	if got := answerTo(n, podNS(2), podAt[1]); got != "p" {
		t.Errorf("the front got %s at the pod's own address", got)
	}
	if got := n.g.Fronts(vip); len(got) != 1 || got[0] != (Front{ID: frontID, Addr: podAt[2], Serving: true}) {
		t.Errorf("fronts %+v", got)
	}
	c, err := dialWithin(podNS(1), podAt[2], time.Second)
	if err != nil {
		t.Errorf("the pod cannot answer the front's address: %v", err)
	} else {
		c.Close()
	}
	n.g.DrainFront(vip, frontID)
	if got := answerTo(n, "client", vip); got != "p" {
		t.Errorf("the client got %s after the front was drained", got)
	}
}

func TestClientsWaitWhileNoPodServesBehindTheFront(t *testing.T) {
	n := frontedNetwork(t)
	answering(n, podNS(1), podAt[1], 'p')
	answering(n, podNS(2), podAt[2], 'f')
	answers := make(chan string, 2)
	for _, from := range []string{"client", podNS(2)} {
		go func() { answers <- answerTo(n, from, vip) }()
	}
	n.ev.await(t, EventWake, 1)
	for n.g.ServiceCounters(vip).ParkedNow < 2 {
		time.Sleep(time.Millisecond)
	}
	// As for the first of several pods: what is released goes to the front all the same.
	_, err := n.g.ServeShare(vip, 1, 2, 0)
	n.must(err)
	if got := <-answers + <-answers; got != "fp" && got != "pf" {
		t.Errorf("answers %s, want one of the front and one of the pod", got)
	}
}

// The front's program may end at any time. No client notices, without any user-space program.
func TestPodsGetTheClientsOfAFrontThatDoesNotListen(t *testing.T) {
	n := frontedNetwork(t)
	answering(n, podNS(1), podAt[1], 'p')
	l := answering(n, podNS(2), podAt[2], 'f')
	watchListen(t, n.g, podNS(2), frontID)
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	if got := answerTo(n, "client", vip); got != "f" {
		t.Fatalf("the client got %s", got)
	}
	n.must(l.Close())
	for range 5 {
		if got := answerTo(n, "client", vip); got != "p" {
			t.Errorf("the client got %s without a front", got)
		}
	}
	if e := n.ev.await(t, EventDeaf, 1)[0]; e.Pod != frontID {
		t.Errorf("%+v", e)
	}
	answering(n, podNS(2), podAt[2], 'f')
	n.must(n.g.ServeFront(vip, frontID))
	if got := answerTo(n, "client", vip); got != "f" {
		t.Errorf("the client got %s after the front has come back", got)
	}
}

// The pods behind a front that cannot be reached any more are found by the front's own connections.
func TestServiceIsColdOnceNoPodBehindTheFrontListens(t *testing.T) {
	n := frontedNetwork(t)
	l := answering(n, podNS(1), podAt[1], 'p')
	answering(n, podNS(2), podAt[2], 'f')
	watchListen(t, n.g, podNS(1), 1)
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	n.must(l.Close())
	go func() { _, _ = dial(podNS(2), vip) }()
	n.ev.await(t, EventWake, 1)
	if s := n.g.ServiceState(vip); s == Warm {
		t.Error("the service is warm without a pod that listens")
	}
}

// New clients get the front that has replaced another one, which keeps those that it has. Neither gets the other's
// connections.
func TestFrontThatIsReplacedKeepsItsClients(t *testing.T) {
	n := frontedNetwork(t)
	n.podNet(3, 1500)
	answering(n, podNS(1), podAt[1], 'p')
	answering(n, podNS(2), podAt[2], 'f')
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	kept, err := dial("client", vip)
	n.must(err)
	defer kept.Close()
	n.must(kept.SetDeadline(time.Now().Add(time.Minute)))
	b := make([]byte, 1)
	if _, err := io.ReadFull(kept, b); err != nil || b[0] != 'f' {
		t.Fatalf("the client got %q, %v", b, err)
	}
	n.addFront(vip, otherFrontID, 3)
	answering(n, podNS(3), podAt[3], 'F')
	if got := answerTo(n, "client", vip); got != "f" {
		t.Errorf("before it serves, the client got %s", got)
	}
	n.must(n.g.ServeFront(vip, otherFrontID))
	for from, want := range map[string]string{"client": "F", podNS(2): "p", podNS(3): "p"} {
		if got := answerTo(n, from, vip); got != want {
			t.Errorf("%s got %s, want %s", from, got, want)
		}
	}
	if open, _ := n.g.OpenFlows(vip, frontID); open != 1 {
		t.Errorf("the front before has %d open flows, want 1", open)
	}
	want := []Front{{ID: frontID, Addr: podAt[2]}, {ID: otherFrontID, Addr: podAt[3], Serving: true}}
	if got := n.g.Fronts(vip); !slices.Equal(got, want) {
		t.Errorf("fronts %+v, want %+v", got, want)
	}
	n.g.DrainFront(vip, frontID) // serves no longer anyway
	if got := answerTo(n, "client", vip); got != "F" {
		t.Errorf("the client got %s", got)
	}
	// The connection still ends in order.
	n.must(kept.CloseWrite())
	if _, err := kept.Read(b); err != io.EOF {
		t.Errorf("at its end the kept connection got %v", err)
	}
	n.must(n.g.RemovePod(vip, frontID))
	for from, want := range map[string]string{"client": "F", podNS(3): "p"} {
		if got := answerTo(n, from, vip); got != want {
			t.Errorf("after the front before was removed, %s got %s, want %s", from, got, want)
		}
	}
}

func TestNextDaemonFindsTheFront(t *testing.T) {
	n := frontedNetwork(t)
	answering(n, podNS(1), podAt[1], 'p')
	answering(n, podNS(2), podAt[2], 'f')
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	n.must(n.g.Close())
	n.open()
	if got := answerTo(n, "client", vip); got != "f" {
		t.Errorf("the client got %s", got)
	}
	if got := n.g.Fronts(vip); len(got) != 1 || got[0] != (Front{ID: frontID, Addr: podAt[2], Serving: true}) {
		t.Errorf("fronts %+v", got)
	}
	n.must(n.g.RemovePod(vip, frontID))
	if got := answerTo(n, "client", vip); got != "p" {
		t.Errorf("the client got %s after the front was removed", got)
	}
}

// A service whose requests go to others has no pods: its front takes all clients, and those that have waited for it.
func TestFrontIsTheOnlyOneToServe(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	_, err := n.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Proof: ProofNever})
	n.must(err)
	n.podNet(3, 1500)
	n.addFront(vip, frontID, 2)
	answering(n, podNS(2), podAt[2], 'f')
	waiting := make(chan string, 1)
	wait := func() { waiting <- answerTo(n, "client", vip) }
	go wait()
	n.ev.await(t, EventWake, 1)
	for n.g.ServiceCounters(vip).ParkedNow < 1 {
		time.Sleep(time.Millisecond)
	}
	if got, err := n.g.ServeOnlyFront(vip, frontID); err != nil || got != 1 {
		t.Errorf("released %d, %v", got, err)
	}
	if got := <-waiting; got != "f" {
		t.Errorf("the client that waited got %s", got)
	}
	if got := n.g.Fronts(vip); !slices.Equal(got, []Front{{ID: frontID, Addr: podAt[2], Serving: true, Only: true}}) {
		t.Errorf("fronts %+v", got)
	}
	n.addFront(vip, otherFrontID, 3)
	answering(n, podNS(3), podAt[3], 'F')
	_, err = n.g.ServeOnlyFront(vip, otherFrontID)
	n.must(err)
	for range 5 {
		if got := answerTo(n, "client", vip); got != "F" {
			t.Errorf("the client got %s, and not the front that has taken over", got)
		}
	}
	n.must(n.g.RemovePod(vip, frontID))
	if got := answerTo(n, "client", vip); got != "F" {
		t.Errorf("the client got %s after the front before was removed", got)
	}
	n.g.DrainFront(vip, otherFrontID)
	go wait()
	n.ev.await(t, EventWake, 2)
	_, err = n.g.ServeOnlyFront(vip, otherFrontID)
	n.must(err)
	if got := <-waiting; got != "F" {
		t.Errorf("the client that waited got %s", got)
	}
	n.must(n.g.RemovePod(vip, otherFrontID))
	if s := n.g.ServiceState(vip); s != Cold {
		t.Errorf("without a front the service is in state %v", s)
	}
}

// The pods' own addresses are no service addresses. What a front exchanges with them counts all the same.
func TestWhatAFrontExchangesWithAPodIsUseOfThePod(t *testing.T) {
	n := frontedNetwork(t)
	answering(n, podNS(1), podAt[1], 'p')
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	if got := answerTo(n, podNS(2), podAt[1]); got != "p" {
		t.Fatalf("the front got %s", got)
	}
	c, err := n.g.PodCounters(vip, 1)
	n.must(err)
	if c.LastPacket == 0 || c.PacketsIn < 3 || c.PacketsOut < 2 || c.BytesOut == 0 {
		t.Errorf("%+v", c)
	}
}

// frontedCluster is a cluster with a service of one pod, pod 1 on the home node, and a front in the network of pod 2 on
// the edge node. The front reaches the pod by the nodes' routes.
func frontedCluster(t *testing.T, shortcut bool) *cluster {
	c := newClusterOf(t, 1500, func(c *Config) { c.Shortcut = shortcut })
	c.podNet(c.home, 1, 1500)
	c.podNet(c.edge, 2, 1500)
	c.addPod(vip, c.home, 1)
	sh(t, "ip -n edge route add %v via %v; ip -n home route add %v via %v", podAt[1].Addr(), c.home.addr, podAt[2].Addr(),
		c.edge.addr)
	c.addFront(c.edge, 2)
	for _, n := range []*node{c.edge, c.home} {
		c.must(n.g.SetFronts([]netip.Addr{podAt[2].Addr()}))
	}
	return c
}

// frontOf returns the ID of a node's front.
func frontOf(n *node) uint64 { return FrontIDs(n.addr)[0] }

// addFront makes the network of a pod on a node that of the node's front, which serves.
func (c *cluster) addFront(on *node, i int) {
	c.Helper()
	front := Pod{ID: frontOf(on), Service: vip, Addr: podAt[i]}
	c.must(inNamespace(podNS(i), func() error {
		front.MAC = linkByName(c, "eth0").Attrs().HardwareAddr
		return nil
	}))
	c.in(on, func() error {
		host := linkByName(c, podNS(i)).Attrs()
		front.Ifindex, front.HostMAC = host.Index, host.HardwareAddr
		return on.g.AddPod(front)
	})
	c.must(on.g.ServeFront(vip, front.ID))
}

// A front stays on its node when the VIP moves: its connections go on through the node that announces the VIP now, also
// while that has a front of its own, and when the VIP comes back.
func TestConnectionsToFrontsSurviveMovesOfTheirVIP(t *testing.T) {
	c := frontedCluster(t, false)
	m := &movable{cluster: c, third: c.join("third", netip.MustParseAddr("10.46.200.3"), 1500)}
	c.podNet(m.third, 3, 1500)
	c.in(m.third, func() error {
		return m.third.g.AddPod(Pod{ID: 1, Service: vip, Addr: podAt[1], Node: c.home.addr})
	})
	c.serve(vip, 1)
	_, err := m.third.g.Serve(vip, 1)
	m.must(err)
	c.addFront(m.third, 3)
	for on, of := range map[*node]*node{m.edge: m.third, m.third: m.edge} {
		m.must(on.g.AddPod(Pod{ID: frontOf(of), Service: vip, Addr: netip.AddrPortFrom(of.addr, 1), Node: of.addr}))
		on.g.DrainFront(vip, frontOf(of))
	}
	mirror(t, 2)
	mirror(t, 3)
	goesOn := func(c *net.TCPConn) {
		t.Helper()
		m.must(c.SetDeadline(time.Now().Add(time.Minute)))
		_, err := c.Write([]byte("on?"))
		if err == nil {
			_, err = io.ReadFull(c, make([]byte, 3))
		}
		if err != nil {
			t.Fatalf("%v; %v, third %v", err, m.counted(), counted(t, m.third.g))
		}
	}
	first, err := dial("client", vip)
	m.must(err)
	goesOn(first)
	if got := m.third.g.FrontsElsewhere(vip); len(got) != 1 || got[frontOf(m.edge)] != 0 {
		t.Errorf("fronts on other nodes: %v", got)
	}
	m.move(m.edge, m.third)
	goesOn(first)
	second, err := dial("client", vip)
	m.must(err)
	goesOn(second)
	m.wantFlows(m.third, int(frontOf(m.edge)), 1)
	m.wantFlows(m.third, int(frontOf(m.third)), 1)
	m.wantFlows(m.edge, int(frontOf(m.edge)), 1)
	if got := m.third.g.FrontsElsewhere(vip); got[frontOf(m.edge)] != 1 {
		t.Errorf("fronts on other nodes: %v", got)
	}
	if got := m.third.g.Fronts(vip); len(got) != 1 || got[0].ID != frontOf(m.third) || !got[0].Serving {
		t.Errorf("fronts of this node: %v", got)
	}
	m.move(m.third, m.edge)
	goesOn(first)
	goesOn(second)
	m.wantFlows(m.third, int(frontOf(m.edge)), 0)
	first.Close()
	second.Close()
	for _, n := range []*node{m.edge, m.third} {
		m.wantFlows(n, int(frontOf(n)), 0)
	}
	m.wantFlows(m.edge, int(frontOf(m.third)), 0)
}

// answered returns the name of the server that answers a connection from a namespace.
func (c *cluster) answered(from string, to netip.AddrPort) string {
	c.Helper()
	return answerTo(&network{T: c.T}, from, to)
}

// A client outside, a process on the node and a pod there get the front, and the front gets a pod on another node: at
// the pod's own address, and at the service address, where the pod network might replace its address.
func TestFrontOfANodeServesItsClientsAndReachesOtherNodes(t *testing.T) {
	for _, shortcut := range []bool{true, false} {
		t.Run(fmt.Sprintf("shortcut %v", shortcut), func(t *testing.T) {
			c := frontedCluster(t, shortcut)
			c.plainPod(1500)
			// As a pod network does that masquerades what leaves it.
			sh(t, `ip netns exec edge nft 'table ip nat {
				chain post { type nat hook postrouting priority srcnat;
					ip saddr %v ip daddr %v masquerade
				}
			}'`, podAt[2].Addr(), serviceRange)
			front, pod := &network{T: t}, &network{T: t}
			answering(front, podNS(2), podAt[2], 'f')
			answering(pod, podNS(1), podAt[1], 'p')
			c.serve(vip, 1)
			for _, ns := range []string{"client", "edge", "plain"} {
				if got := c.answered(ns, vip); got != "f" {
					t.Errorf("%s got %s", ns, got)
				}
			}
			if got := c.answered(podNS(2), vip); got != "p" {
				t.Errorf("the front got %s at the service address", got)
			}
			// With rules, too, on a node whose route to the front is not by the front's device, as with a bridge.
			_, err := c.edge.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Restricted: true,
				Sources: []sources.Rule{{Prefix: netip.PrefixFrom(podAt[2].Addr(), 32), Allow: true}}})
			c.must(err)
			sh(t, `ip -n edge link add br1 type bridge; ip -n edge link set br1 up
				ip -n edge route replace %v dev br1`, podAt[2].Addr())
			if got := c.answered(podNS(2), vip); got != "p" {
				t.Errorf("the front got %s at the service address, with rules", got)
			}
			sh(t, "ip -n edge route replace %v dev pod2; ip -n edge link del br1", podAt[2].Addr())
			_, err = c.edge.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100})
			c.must(err)
			if got := c.answered(podNS(2), podAt[1]); got != "p" {
				t.Errorf("the front got %s at the pod's own address", got)
			}
			floodServices(t, c.edge.g)
			floodServices(t, c.home.g)
			for from, node := range map[string]string{podNS(2): "the front", "home": "the pod's node"} {
				if got := c.answered(from, podAt[1]); got != "p" {
					t.Errorf("%s got %s at the pod's own address during a flood", node, got)
				}
			}
			c.edge.g.DrainFront(vip, frontOf(c.edge))
			if got := c.answered("client", vip); got != "p" {
				t.Errorf("the client got %s without a front", got)
			}
		})
	}
}

// A pod's node sees what a front of another node gets from it only by the front's address.
func TestAnswersToFrontsOfOtherNodesAreUseOfThePod(t *testing.T) {
	c := frontedCluster(t, true)
	answering(&network{T: t}, podNS(1), podAt[1], 'p')
	c.serve(vip, 1)
	if got := c.answered(podNS(2), podAt[1]); got != "p" {
		t.Fatalf("the front got %s", got)
	}
	eventually(t, func() error {
		p, err := c.home.g.PodCounters(vip, 1)
		if err == nil && (p.LastPacket == 0 || p.BytesOut == 0) {
			err = fmt.Errorf("the front's connection is not counted: %+v", p)
		}
		return err
	})
	c.must(c.home.g.SetFronts(nil))
	before, err := c.home.g.PodCounters(vip, 1)
	c.must(err)
	if got := c.answered(podNS(2), podAt[1]); got != "p" {
		t.Fatalf("got %s", got)
	}
	after, err := c.home.g.PodCounters(vip, 1)
	c.must(err)
	if after.BytesOut != before.BytesOut || after.LastPacket != before.LastPacket {
		t.Errorf("a connection of what is no front counts: %+v, then %+v", before, after)
	}
}

// transparentFront makes the network of pod 2, which is that of the front, take all that reaches it for its own.
func transparentFront(n *network) {
	sh(n, `ip -n %[1]s rule add iif eth0 lookup 100; ip -n %[1]s route add local 0.0.0.0/0 dev lo table 100`, podNS(2))
}

// dialAs connects from a network namespace and an address that it need not have.
func dialAs(ns string, from, to netip.AddrPort) (c net.Conn, err error) {
	d := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(from), Timeout: time.Minute,
		Control: func(_, _ string, raw syscall.RawConn) (err error) {
			return errors.Join(raw.Control(func(fd uintptr) {
				err = errors.Join(
					unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1),
					unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
			}), err)
		},
	}
	err = inNamespace(ns, func() (err error) { c, err = d.Dial("tcp4", to.String()); return err })
	return c, err
}

// telling listens in a network namespace and tells each client where it is seen.
func telling(n *network, ns string, at netip.AddrPort) {
	serveIn(n, ns, at, func(c net.Conn) {
		_, _ = io.WriteString(c, c.RemoteAddr().String())
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	})
}

// seenAs connects from the front's network and returns what the pod takes for its client.
func seenAs(n *network, from, to netip.AddrPort) string {
	n.Helper()
	c, err := dialAs(podNS(2), from, to)
	n.must(err)
	defer c.Close()
	n.must(c.SetDeadline(time.Now().Add(time.Minute)))
	seen, err := io.ReadAll(c)
	n.must(err)
	return string(seen)
}

func TestFrontConnectsToPodsFromItsClientsAddress(t *testing.T) {
	n := frontedNetwork(t)
	transparentFront(n)
	telling(n, podNS(1), podAt[1])
	answering(n, podNS(2), podAt[2], 'f')
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	for _, from := range []string{"203.0.113.7:2000", "203.0.113.8:2000", podAt[3].Addr().String() + ":2000"} {
		for _, to := range []netip.AddrPort{podAt[1], vip} {
			if got := seenAs(n, netip.MustParseAddrPort(from), to); got != from {
				t.Errorf("%v at %v is seen as %s", from, to, got)
			}
		}
	}
	if got := answerTo(n, podNS(1), vip); got != "f" {
		t.Errorf("the pod itself got %q at its service's address", got)
	}
	if c, err := dialAs(podNS(2), netip.AddrPortFrom(podAt[1].Addr(), 2000), podAt[1]); err == nil {
		c.Close()
		t.Error("the front has connected to a pod from its own address")
	} else if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("connecting from the pod's own address: %v, want it to be refused at once", err)
	}
}

func TestFrontWakesAServiceFromItsClientsAddress(t *testing.T) {
	n := frontedNetwork(t)
	transparentFront(n)
	telling(n, podNS(1), podAt[1])
	answering(n, podNS(2), podAt[2], 'f')
	const client = "203.0.113.7:2000"
	seen := make(chan string, 1)
	go func() { seen <- seenAs(n, netip.MustParseAddrPort(client), vip) }()
	n.ev.await(t, EventWake, 1)
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	if got := <-seen; got != client {
		t.Errorf("the pod has seen %s", got)
	}
}

// A pod could not tell the two connections apart.
func TestFrontIsRefusedAPortThatItsClientUsesWithThePod(t *testing.T) {
	n := frontedNetwork(t)
	transparentFront(n)
	n.g.DrainFront(vip, frontID)
	telling(n, podNS(1), podAt[1])
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	var c *net.TCPConn
	n.must(inNamespace("client", func() (err error) {
		conn, err := net.Dial("tcp4", vip.String())
		if err == nil {
			c = conn.(*net.TCPConn)
		}
		return err
	}))
	defer c.Close()
	n.must(n.g.ServeFront(vip, frontID))
	from := c.LocalAddr().(*net.TCPAddr).AddrPort()
	for _, to := range []netip.AddrPort{podAt[1], vip} {
		if stolen, err := dialAs(podNS(2), from, to); err == nil {
			stolen.Close()
			t.Errorf("connected to %v", to)
		} else if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%v: %v, want it to be refused at once", to, err)
		}
	}
	n.must(c.SetDeadline(time.Now().Add(time.Minute)))
	if got, err := io.ReadAll(c); err != nil || string(got) != from.String() {
		t.Errorf("the client's connection: %q, %v", got, err)
	}
}

// floodServices makes a gate take its services for flooded until the test ends.
func floodServices(t *testing.T, g *Gate) {
	t.Helper()
	for service := range g.cfg.Sizes.Services {
		if err := g.objs.Floods.Put(service, uint64(monotime.Now())+uint64(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
}

// What a pod answers to others than its clients, at its own address, looks like its answer to a SYN of the flood.
func TestFloodOfAServiceLeavesConnectionsToItsPodsOwnAddressesAlone(t *testing.T) {
	n := frontedNetwork(t)
	transparentFront(n)
	sh(n, "ip route replace %v/32 dev pod1", podAt[1].Addr())
	answering(n, podNS(2), podAt[2], 'f')
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	floodServices(t, n.g)
	own := netip.AddrPortFrom(podAt[2].Addr(), 0)
	for _, c := range []struct {
		name, ns string
		from     netip.AddrPort
	}{
		{"front", podNS(2), own}, {"front, as its client", podNS(2), netip.MustParseAddrPort("203.0.113.7:2000")},
		{"node", "", netip.AddrPort{}},
	} {
		connect := func() (net.Conn, error) {
			if c.from.IsValid() {
				return dialAs(c.ns, c.from, podAt[1])
			}
			return dial(c.ns, podAt[1])
		}
		if conn, err := connect(); err == nil {
			conn.Close()
			t.Errorf("%s: connected to a pod that does not listen", c.name)
		} else if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %v, want the pod's refusal", c.name, err)
		}
		l := answering(n, podNS(1), podAt[1], 'p')
		conn, err := connect()
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else {
			n.must(conn.SetDeadline(time.Now().Add(time.Minute)))
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			conn.Close()
		}
		n.must(l.Close())
	}
	if got := answerTo(n, "client", vip); got != "f" {
		t.Errorf("a client got %s during the flood", got)
	}
}
