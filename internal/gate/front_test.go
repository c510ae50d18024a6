// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
)

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
	n.addFront(vip, FrontID, 2)
	n.must(n.g.ServeFront(vip, FrontID))
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
	if got := n.g.Fronts(vip); len(got) != 1 || got[0] != (Front{ID: FrontID, Addr: podAt[2], Serving: true}) {
		t.Errorf("fronts %+v", got)
	}
	c, err := dialWithin(podNS(1), podAt[2], time.Second)
	if err != nil {
		t.Errorf("the pod cannot answer the front's address: %v", err)
	} else {
		c.Close()
	}
	n.g.DrainFront(vip, FrontID)
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
	watchListen(t, n.g, podNS(2), FrontID)
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
	if e := n.ev.await(t, EventDeaf, 1)[0]; e.Pod != FrontID {
		t.Errorf("%+v", e)
	}
	answering(n, podNS(2), podAt[2], 'f')
	n.must(n.g.ServeFront(vip, FrontID))
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
	n.addFront(vip, OtherFrontID, 3)
	answering(n, podNS(3), podAt[3], 'F')
	if got := answerTo(n, "client", vip); got != "f" {
		t.Errorf("before it serves, the client got %s", got)
	}
	n.must(n.g.ServeFront(vip, OtherFrontID))
	for from, want := range map[string]string{"client": "F", podNS(2): "p", podNS(3): "p"} {
		if got := answerTo(n, from, vip); got != want {
			t.Errorf("%s got %s, want %s", from, got, want)
		}
	}
	if open, _ := n.g.OpenFlows(vip, FrontID); open != 1 {
		t.Errorf("the front before has %d open flows, want 1", open)
	}
	want := []Front{{ID: FrontID, Addr: podAt[2]}, {ID: OtherFrontID, Addr: podAt[3], Serving: true}}
	if got := n.g.Fronts(vip); !slices.Equal(got, want) {
		t.Errorf("fronts %+v, want %+v", got, want)
	}
	n.g.DrainFront(vip, FrontID) // serves no longer anyway
	if got := answerTo(n, "client", vip); got != "F" {
		t.Errorf("the client got %s", got)
	}
	// The connection still ends in order.
	n.must(kept.CloseWrite())
	if _, err := kept.Read(b); err != io.EOF {
		t.Errorf("at its end the kept connection got %v", err)
	}
	n.must(n.g.RemovePod(vip, FrontID))
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
	if got := n.g.Fronts(vip); len(got) != 1 || got[0] != (Front{ID: FrontID, Addr: podAt[2], Serving: true}) {
		t.Errorf("fronts %+v", got)
	}
	n.must(n.g.RemovePod(vip, FrontID))
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
	n.addFront(vip, FrontID, 2)
	answering(n, podNS(2), podAt[2], 'f')
	waiting := make(chan string, 1)
	wait := func() { waiting <- answerTo(n, "client", vip) }
	go wait()
	n.ev.await(t, EventWake, 1)
	for n.g.ServiceCounters(vip).ParkedNow < 1 {
		time.Sleep(time.Millisecond)
	}
	if got, err := n.g.ServeOnlyFront(vip, FrontID); err != nil || got != 1 {
		t.Errorf("released %d, %v", got, err)
	}
	if got := <-waiting; got != "f" {
		t.Errorf("the client that waited got %s", got)
	}
	if got := n.g.Fronts(vip); !slices.Equal(got, []Front{{ID: FrontID, Addr: podAt[2], Serving: true, Only: true}}) {
		t.Errorf("fronts %+v", got)
	}
	n.addFront(vip, OtherFrontID, 3)
	answering(n, podNS(3), podAt[3], 'F')
	_, err = n.g.ServeOnlyFront(vip, OtherFrontID)
	n.must(err)
	for range 5 {
		if got := answerTo(n, "client", vip); got != "F" {
			t.Errorf("the client got %s, and not the front that has taken over", got)
		}
	}
	n.must(n.g.RemovePod(vip, FrontID))
	if got := answerTo(n, "client", vip); got != "F" {
		t.Errorf("the client got %s after the front before was removed", got)
	}
	n.g.DrainFront(vip, OtherFrontID)
	go wait()
	n.ev.await(t, EventWake, 2)
	_, err = n.g.ServeOnlyFront(vip, OtherFrontID)
	n.must(err)
	if got := <-waiting; got != "F" {
		t.Errorf("the client that waited got %s", got)
	}
	n.must(n.g.RemovePod(vip, OtherFrontID))
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
