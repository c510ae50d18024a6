// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

func wake(i int) *Wake { return &Wake{Service: service4, Seq: uint64(i), SYNSeen: 5, Noticed: 6} }

// wantWakes checks that the messages are the wakes from first to last, each once and in order.
func wantWakes(t *testing.T, got []Message, first, last int) {
	t.Helper()
	if len(got) != last-first+1 {
		t.Fatalf("%d messages, want %d", len(got), last-first+1)
	}
	for i, m := range got {
		if w, ok := m.(*Wake); !ok || w.Seq != uint64(first+i) {
			t.Fatalf("message %d is %+v", i, m)
		}
	}
}

func TestMessagesArriveInBothDirections(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	dmn := startDaemon(t, ctl.addr, "node-1", nil)
	p := ctl.peer(t, "node-1")
	if !p.SameHost {
		t.Error("SameHost is false on one machine")
	}
	eventually(t, "connected", func() bool { return dmn.connections() == 1 })
	want := map[Type]Message{}
	for name, m := range samples() {
		oneOfItsType := !strings.HasSuffix(name, " full") && !strings.HasSuffix(name, " none")
		if m.Type() == TypeSync || !oneOfItsType || name == "report of a pod's network" ||
			strings.HasPrefix(name, "backends with") || name == "unready for good" || name == "images lazily" ||
			strings.HasPrefix(name, "alert of") {
			continue
		}
		want[m.Type()] = m
		if err := dmn.Send(m); err != nil {
			t.Fatal(name, err)
		}
		if err := ctl.Send(p.ID, m); err != nil {
			t.Fatal(name, err)
		}
	}
	for _, got := range []func() []Message{ctl.received, dmn.received} {
		eventually(t, "all messages received", func() bool { return len(got()) == len(want) })
		for _, m := range got() {
			if !reflect.DeepEqual(m, want[m.Type()]) {
				t.Errorf("got %+v, want %+v", m, want[m.Type()])
			}
		}
	}
	// A message of several datagrams.
	full := samples()["backends full"]
	if err := ctl.SendWait(t.Context(), p.ID, full); err != nil {
		t.Fatal(err)
	}
	if got := dmn.received(); !reflect.DeepEqual(got[len(got)-1], full) {
		t.Error("the longest message was altered")
	}
	if err := ctl.Send(p.ID+1, wake(1)); !errors.Is(err, ErrPeerGone) {
		t.Errorf("sending to an unknown peer: %v", err)
	}
	if err := ctl.Send(p.ID, &Wake{}); err == nil {
		t.Error("a message outside its limits was sent")
	}
}

func TestSendWaitReturnsAfterTheHandler(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	let, handled := make(chan struct{}), atomic.Int32{}
	release := sync.OnceFunc(func() { close(let) })
	startDaemon(t, ctl.addr, "node-1", func(c *ClientConfig) {
		c.Receive = func(Message) {
			<-let
			handled.Add(1)
		}
	})
	t.Cleanup(release)
	p := ctl.peer(t, "node-1")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := ctl.SendWait(ctx, p.ID, wake(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("while the handler runs: %v", err)
	}
	release()
	if err := ctl.SendWait(t.Context(), p.ID, wake(2)); err != nil || handled.Load() != 2 {
		t.Fatalf("%v after %d handlers", err, handled.Load())
	}
	if err := ctl.SendWait(t.Context(), p.ID, &Stats{}); err == nil {
		t.Error("SendWait accepts Stats, which are not acknowledged")
	}
}

func TestMessagesSurviveLossDuplicationAndReordering(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	r := startRelay(t, ctl.addr)
	r.set(func() { r.loss, r.double, r.late = 0.3, 0.1, 0.2 })
	dmn := startDaemon(t, r.addr(), "node-1", nil)
	p := ctl.peer(t, "node-1")
	const n = 500
	if err := ctl.SetServices(manyServices(2000)); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := dmn.Send(wake(i)); err != nil {
			t.Fatal(err)
		}
		if err := ctl.Send(p.ID, wake(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := ctl.SendWait(t.Context(), p.ID, samples()["backends full"]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all wakes at the controller", func() bool { return len(ctl.received()) >= n })
	wantWakes(t, ctl.received(), 0, n-1)
	wantWakes(t, dmn.received()[:n], 0, n-1)
	eventually(t, "the table", func() bool { // which may wait for the daemon's report of its own
		_, _, steps, _, services := dmn.state()
		return services == 2000 && steps == 1
	})
	// Send until an acknowledgement was lost, which is a matter of chance.
	more := n
	eventually(t, "a duplicate", func() bool {
		if err := dmn.Send(wake(more)); err != nil {
			t.Error(err)
		}
		more++
		return ctl.Counters().Duplicates > 0
	})
	c := ctl.Counters()
	if c.Repeats == 0 || c.DroppedReplay == 0 || c.DroppedMalformed+c.DroppedSeal+c.Lost != 0 {
		t.Errorf("counters %+v", c)
	}
}

func TestMessagesWaitWhileTheNetworkIsCut(t *testing.T) {
	noLeak(t)
	quick := 200 * time.Millisecond
	ctl := startController(t, "127.0.0.1:0", func(c *ServerConfig) { c.Keepalive = quick })
	r := startRelay(t, ctl.addr)
	dmn := startDaemon(t, r.addr(), "node-1", func(c *ClientConfig) { c.Keepalive = quick })
	first := ctl.peer(t, "node-1")
	eventually(t, "connected", func() bool { return dmn.connections() == 1 })
	r.set(func() { r.cut = true })
	waiting := make(chan error)
	go func() { waiting <- ctl.SendWait(t.Context(), first.ID, wake(7)) }()
	eventually(t, "both ends noticed", func() bool {
		_, downs, _, _, _ := dmn.state()
		return downs == 1 && ctl.leaves() == 1
	})
	if err := <-waiting; !errors.Is(err, ErrPeerGone) {
		t.Errorf("SendWait to a peer that was lost: %v", err)
	}
	for i := range 5 { // wait for the next session
		if err := dmn.Send(wake(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := dmn.Send(&Stats{}); err != nil {
		t.Fatal(err)
	}
	for i := 5; i < maxWaiting; i++ {
		if err := dmn.Send(wake(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := dmn.Send(wake(0)); !errors.Is(err, ErrQueueFull) {
		t.Errorf("the queue is not limited: %v", err)
	}
	r.set(func() { r.cut = false })
	eventually(t, "all messages after the cut", func() bool { return len(ctl.received()) >= maxWaiting })
	wantWakes(t, ctl.received(), 0, maxWaiting-1)
	if p := ctl.peer(t, "node-1"); p.ID == first.ID {
		t.Error("the same session after the cut")
	}
	if c := ctl.Counters(); c.Lost == 0 {
		t.Errorf("counters %+v", c)
	}
}

func TestUnacknowledgedMessagesGoToTheNextServer(t *testing.T) {
	noLeak(t)
	quick := 200 * time.Millisecond
	slow := func(c *ServerConfig) { c.Keepalive = quick }
	one, two := startController(t, "127.0.0.1:0", slow), startController(t, "127.0.0.1:0", slow)
	r := startRelay(t, one.addr)
	dmn := startDaemon(t, r.addr(), "node-1", func(c *ClientConfig) { c.Keepalive = quick })
	one.peer(t, "node-1")
	eventually(t, "connected", func() bool { return dmn.connections() == 1 })
	r.set(func() { r.cut = true })
	for i := range 100 {
		if err := dmn.Send(wake(i)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "noticed", func() bool { _, downs, _, _, _ := dmn.state(); return downs == 1 })
	r.set(func() {
		r.cut = false
		r.server.Port = int(netip.MustParseAddrPort(two.addr).Port())
		for a, l := range r.lines {
			l.Close()
			delete(r.lines, a)
		}
	})
	eventually(t, "all messages at the second", func() bool { return len(two.received()) >= 100 })
	wantWakes(t, two.received(), 0, 99)
	if len(one.received()) != 0 {
		t.Error("the first got some, too")
	}
}

func TestClientKeepsItsTableWhenTheServerRestarts(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	dmn := startDaemon(t, ctl.addr, "node-1", nil)
	if err := ctl.SetServices(manyServices(100)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "table", func() bool { _, _, _, _, n := dmn.state(); return n == 100 })
	if err := ctl.Close(); err != nil {
		t.Fatal(err)
	}
	if ctl.leaves() != 1 {
		t.Error("Left was not called by Close")
	}
	eventually(t, "disconnected", func() bool { _, downs, _, _, _ := dmn.state(); return downs == 1 })
	if err := dmn.Send(wake(0)); err != nil {
		t.Fatal(err)
	}
	again := startController(t, ctl.addr, nil)
	eventually(t, "the message received", func() bool { return len(again.received()) == 1 })
	// A server without a table does not change the client's.
	if _, _, steps, _, n := dmn.state(); n != 100 || steps != 1 {
		t.Errorf("%d services, %d steps", n, steps)
	}
	// A new server sends the whole table.
	if err := again.SetServices(manyServices(100)); err != nil {
		t.Fatal(err)
	}
	if err := again.SetServices(manyServices(101)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "table", func() bool { _, _, _, _, n := dmn.state(); return n == 101 })
}

// After a change of the leader, every client has the table already.
func TestNewServerWithTheSameTableDoesNotSendIt(t *testing.T) {
	noLeak(t)
	first, second := startController(t, "127.0.0.1:0", nil), startController(t, "127.0.0.1:0", nil)
	services := manyServices(1000)
	for _, c := range []*controller{first, second} {
		if err := c.SetServices(services); err != nil {
			t.Fatal(err)
		}
	}
	kept := make(chan struct{}, 10)
	dmn := startDaemon(t, first.addr, "node-1", func(c *ClientConfig) { c.Kept = func() { kept <- struct{}{} } })
	plain := startDaemon(t, first.addr, "node-2", nil)
	for _, d := range []*daemon{dmn, plain} {
		eventually(t, "the table", func() bool { _, _, _, _, n := d.state(); return n == 1000 })
		if err := d.SetServer(second.addr); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-kept:
	case <-time.After(patience):
		t.Fatal("the client was not told that the new server has its table")
	}
	eventually(t, "a client that does not know of this has the whole table", func() bool {
		_, _, _, fulls, _ := plain.state()
		return fulls == 2
	})
	// From then on, the client has the server's version.
	if err := second.UpdateServices(nil, []netip.AddrPort{services[0].Addr}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the change", func() bool { _, _, _, _, n := dmn.state(); return n == 999 })
	if _, _, steps, fulls, _ := dmn.state(); steps != 2 || fulls != 1 || len(kept) != 0 {
		t.Errorf("%d steps, %d of them whole", steps, fulls)
	}
	// A server with another table sends all of it.
	third := startController(t, "127.0.0.1:0", nil)
	if err := third.SetServices(services[1:101]); err != nil {
		t.Fatal(err)
	}
	if err := dmn.SetServer(third.addr); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other table", func() bool { _, _, _, fulls, n := dmn.state(); return fulls == 2 && n == 100 })
	if n := first.Counters().SyncRepairs + second.Counters().SyncRepairs + third.Counters().SyncRepairs; n != 0 {
		t.Errorf("%d repairs", n)
	}
}

func TestRestartedClientGetsANewSession(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	one := startDaemon(t, ctl.addr, "node-1", nil)
	first := ctl.peer(t, "node-1")
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "gone", func() bool { return ctl.leaves() == 1 })
	if err := one.Send(wake(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	startDaemon(t, ctl.addr, "node-1", nil)
	if p := ctl.peer(t, "node-1"); p.ID == first.ID {
		t.Error("the same session")
	}
}

func TestNewerOfTwoClientsOfANodeWins(t *testing.T) {
	noLeak(t)
	quick := 200 * time.Millisecond
	ctl := startController(t, "127.0.0.1:0", func(c *ServerConfig) { c.Keepalive = quick })
	set := func(c *ClientConfig) { c.Keepalive = quick }
	older := startDaemon(t, ctl.addr, "node-1", set)
	first := ctl.peer(t, "node-1")
	eventually(t, "the older connected", func() bool { return older.connections() == 1 })
	newer := startDaemon(t, ctl.addr, "node-1", set)
	eventually(t, "the older disconnected", func() bool { _, downs, _, _, _ := older.state(); return downs == 1 })
	var p Peer
	eventually(t, "only the newer is a peer", func() bool {
		peers := ctl.Peers()
		if len(peers) != 1 || peers[0].ID == first.ID {
			return false
		}
		p = peers[0]
		return true
	})
	// The older client tries again, and is refused while the newer one is connected.
	eventually(t, "refused", func() bool { return ctl.Counters().Replaced >= 2 })
	if err := ctl.SendWait(t.Context(), p.ID, wake(1)); err != nil || len(newer.received()) != 1 {
		t.Errorf("sending to the newer: %v, it has %d messages", err, len(newer.received()))
	}
	if _, downs, _, _, _ := newer.state(); downs != 0 || older.connections() != 1 {
		t.Errorf("the newer was disconnected %d times, the older connected %d times", downs, older.connections())
	}
	newer.Close()
	eventually(t, "the older connected again", func() bool { return older.connections() == 2 })
	eventually(t, "joined three times", func() bool { return ctl.joins() == 3 })
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	if want := "[+node-1 -node-1 +node-1 -node-1 +node-1]"; fmt.Sprint(ctl.order) != want {
		t.Errorf("order %v", ctl.order)
	}
}

// The client's clock is an hour and a bit ahead.
func TestTimesOfAnotherMachineAreConverted(t *testing.T) {
	noLeak(t)
	const ahead = time.Hour + 123*time.Millisecond
	ctl := startController(t, "127.0.0.1:0", nil)
	dmn := startDaemon(t, ctl.addr, "node-1", func(c *ClientConfig) {
		c.boot = bootID{1}
		c.now = func() monotime.Time { return monotime.Now().Add(ahead) }
	})
	p := ctl.peer(t, "node-1")
	if p.SameHost {
		t.Error("SameHost is true with another boot ID")
	}
	roundTrip := func() (longer time.Duration) {
		ctl.Server.mu.Lock()
		server := ctl.peers[p.ID].session
		ctl.Server.mu.Unlock()
		dmn.Client.mu.Lock()
		client := dmn.current
		dmn.Client.mu.Unlock()
		for _, s := range []*session{server, client} {
			s.mu.Lock()
			rtt, _ := s.clock.best()
			s.mu.Unlock()
			longer = max(longer, rtt)
		}
		return longer
	}
	eventually(t, "connected", func() bool { return dmn.connections() == 1 })
	slack := roundTrip()
	at := monotime.Now()
	if err := dmn.Send(&Listening{Service: service4, At: at.Add(ahead)}); err != nil {
		t.Fatal(err)
	}
	if err := ctl.SendWait(t.Context(), p.ID, &Idle{Service: service4, LastPacket: at}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both received", func() bool { return len(ctl.received()) == 1 })
	// The error of the estimate is below the shortest round trip.
	slack = max(slack, roundTrip())
	if d := ctl.received()[0].(*Listening).At.Sub(at); d.Abs() > slack {
		t.Errorf("the server is off by %v", d)
	}
	if d := dmn.received()[0].(*Idle).LastPacket.Sub(at.Add(ahead)); d.Abs() > slack {
		t.Errorf("the client is off by %v", d)
	}
}

func TestHandlersMaySendAndCloseStopsEverything(t *testing.T) {
	noLeak(t)
	var ctl *controller
	ready := make(chan struct{})
	ctl = startController(t, "127.0.0.1:0", func(c *ServerConfig) {
		c.Receive = func(p Peer, m Message) {
			<-ready
			if err := ctl.Send(p.ID, m); err != nil && !errors.Is(err, ErrPeerGone) {
				t.Error(err)
			}
		}
	})
	close(ready)
	dmn := startDaemon(t, ctl.addr, "node-1", nil)
	for i := range 200 {
		if err := dmn.Send(wake(i)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all back", func() bool { return len(dmn.received()) == 200 })
	for range 2 {
		if err := ctl.Close(); err != nil {
			t.Error(err)
		}
		if err := dmn.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestBadConfigurationsAreRejected(t *testing.T) {
	noLeak(t)
	for _, c := range []ClientConfig{
		{Server: "nowhere", Node: "n"}, {Server: "127.0.0.1:1"},
		{Server: "127.0.0.1:1", Node: string(make([]byte, 254))},
	} {
		if _, err := NewClient(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	if _, err := NewServer(ServerConfig{}); err == nil {
		t.Error("NewServer accepts a configuration without a socket")
	}
	// Close does not wait for a server that does not answer.
	c, err := NewClient(ClientConfig{Server: "127.0.0.1:1", Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestSlowHandlerHoldsTheSenderBack(t *testing.T) {
	noLeak(t)
	let := make(chan struct{})
	release := sync.OnceFunc(func() { close(let) })
	ctl := startController(t, "127.0.0.1:0", func(c *ServerConfig) {
		count := c.Receive
		c.Receive = func(p Peer, m Message) {
			<-let
			count(p, m)
		}
	})
	t.Cleanup(release)
	dmn := startDaemon(t, ctl.addr, "node-1", nil)
	p := ctl.peer(t, "node-1")
	eventually(t, "connected", func() bool { return dmn.connections() == 1 })
	const n = 5 * maxReady
	for i := range n {
		if err := dmn.Send(wake(i)); err != nil {
			t.Fatal(err)
		}
	}
	// The other direction is not affected.
	if err := ctl.SendWait(t.Context(), p.ID, wake(1)); err != nil {
		t.Fatal(err)
	}
	ctl.Server.mu.Lock()
	s := ctl.peers[p.ID].session
	ctl.Server.mu.Unlock()
	kept := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.receiver.ready)
	}
	eventually(t, "the receiver is full", func() bool { return kept() >= maxReady })
	if kept() > maxReady+sendWindow {
		t.Errorf("%d messages wait", kept())
	}
	release()
	eventually(t, "all received", func() bool { return len(ctl.received()) == n })
	wantWakes(t, ctl.received(), 0, n-1)
}

func TestIdleSessionSendsKeepalivesOnly(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	dmn := startDaemon(t, ctl.addr, "node-1", nil)
	eventually(t, "connected", func() bool { return dmn.connections() == 1 })
	// After a pause of this process an end asks oftener: then it is counted again.
	for tries := 1; ; tries++ {
		before, start := dmn.Counters(), time.Now()
		eventually(t, "keepalives", func() bool { return dmn.Counters().SentDatagrams >= before.SentDatagrams+2 })
		after, took := dmn.Counters(), time.Since(start)
		if took >= DefaultKeepalive/2 && after.ReceivedDatagrams <= before.ReceivedDatagrams+4 {
			return
		}
		if tries == 3 {
			t.Fatalf("two keepalives in %v, %d datagrams came", took, after.ReceivedDatagrams-before.ReceivedDatagrams)
		}
	}
}
