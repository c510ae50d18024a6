// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"
)

// outcomes records the callbacks of SendThen and SendAll.
type outcomes struct {
	mu     sync.Mutex
	errs   []error
	missed [][]Peer
}

func (o *outcomes) then(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.errs = append(o.errs, err)
}

func (o *outcomes) all(missed []Peer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.missed = append(o.missed, missed)
}

func (o *outcomes) counts() (errs, missed int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.errs), len(o.missed)
}

func TestSendThenCallsBackExactlyOnce(t *testing.T) {
	noLeak(t)
	var o outcomes
	var calledBeforeLeft int
	ctl := startController(t, "127.0.0.1:0", func(c *ServerConfig) {
		left := c.Left
		c.Left = func(p Peer) {
			calledBeforeLeft, _ = o.counts()
			left(p)
		}
	})
	block := make(chan struct{})
	dmn := startDaemon(t, ctl.addr, "node-1", func(c *ClientConfig) {
		received := c.Receive
		c.Receive = func(m Message) {
			received(m)
			if m.Type() == TypeRefuse {
				<-block
			}
		}
	})
	p := ctl.peer(t, "node-1")
	eventually(t, "joined", func() bool { return ctl.joins() == 1 })
	backends := &Backends{Service: service4, Generation: 1}
	if err := ctl.SendThen(p.ID, backends, o.then); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an answer", func() bool { n, _ := o.counts(); return n == 1 })
	if o.errs[0] != nil || len(dmn.received()) != 1 {
		t.Errorf("called with %v after %d handled messages", o.errs[0], len(dmn.received()))
	}
	if err := ctl.SendThen(p.ID, &Stats{}, o.then); err == nil {
		t.Error("SendThen accepts Stats, which are not acknowledged")
	}
	// The handler hangs until the session ends: each callback runs once.
	for range 3 {
		if err := ctl.SendThen(p.ID, &Refuse{Service: service4}, o.then); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the handler hangs", func() bool { return len(dmn.received()) == 2 })
	if n, _ := o.counts(); n != 1 {
		t.Errorf("%d callbacks before the handler has returned", n)
	}
	ctl.mu.Lock()
	session := ctl.Server.peers[p.ID].session
	ctl.mu.Unlock()
	session.end(errSlow, goodbyeClosed)
	close(block)
	eventually(t, "left", func() bool { return ctl.leaves() == 1 })
	if n, _ := o.counts(); n != 4 || calledBeforeLeft != 4 {
		t.Errorf("%d callbacks, %d before Left, want 4", n, calledBeforeLeft)
	}
	for _, err := range o.errs[1:] {
		if !errors.Is(err, ErrPeerGone) {
			t.Errorf("called with %v, want ErrPeerGone", err)
		}
	}
	if err := ctl.SendThen(p.ID, backends, o.then); !errors.Is(err, ErrPeerGone) {
		t.Errorf("to a peer that is gone: %v", err)
	}
	if n, _ := o.counts(); n != 4 {
		t.Error("SendThen returned an error and called back")
	}
}

func TestSendAllWaitsForEveryPeer(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	var o outcomes
	m := &Backends{Service: service4, Generation: 7}
	if err := ctl.SendAll(m, o.all); err != nil {
		t.Fatal(err)
	}
	if _, n := o.counts(); n != 1 || len(o.missed[0]) != 0 {
		t.Fatalf("without peers: %v", o.missed)
	}
	block := make(chan struct{})
	a := startDaemon(t, ctl.addr, "a", nil)
	b := startDaemon(t, ctl.addr, "b", func(c *ClientConfig) {
		received := c.Receive
		c.Receive = func(m Message) {
			<-block
			received(m)
		}
	})
	eventually(t, "both joined", func() bool { return ctl.joins() == 2 })
	if err := ctl.SendAll(m, o.all); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a has it", func() bool { return len(a.received()) == 1 })
	if _, n := o.counts(); n != 1 {
		t.Error("called back before the second peer has handled the message")
	}
	close(block)
	eventually(t, "called back", func() bool { _, n := o.counts(); return n == 2 })
	if len(o.missed[1]) != 0 || len(b.received()) != 1 {
		t.Errorf("missed %v", o.missed[1])
	}
	if err := ctl.SendAll(&Wake{}, o.all); err == nil {
		t.Error("SendAll accepts a message outside its limits")
	}
}

func TestSendAllReportsPeersThatWereGone(t *testing.T) {
	noLeak(t)
	quick := 200 * time.Millisecond
	ctl := startController(t, "127.0.0.1:0", func(c *ServerConfig) { c.Keepalive = quick })
	r := startRelay(t, ctl.addr)
	startDaemon(t, r.addr(), "a", func(c *ClientConfig) { c.Keepalive = quick })
	eventually(t, "joined", func() bool { return ctl.joins() == 1 })
	r.set(func() { r.cut = true })
	var o outcomes
	if err := ctl.SendAll(&Backends{Service: service4, Generation: 7}, o.all); err != nil {
		t.Fatal(err)
	}
	eventually(t, "called back", func() bool { _, n := o.counts(); return n == 1 })
	if len(o.missed[0]) != 1 || o.missed[0][0].Node != "a" {
		t.Errorf("missed %v", o.missed[0])
	}
}

func TestLeaveAnnouncesARestartAndCloseDoesNot(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	for i := range 40 { // in some rounds the client does not know yet that its session is live
		restarting := i%2 == 0
		dmn := startDaemon(t, ctl.addr, "node-1", nil)
		eventually(t, "joined", func() bool { return ctl.joins() == i+1 })
		var err error
		if restarting {
			err = dmn.Leave()
		} else {
			err = dmn.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "left", func() bool { return ctl.leaves() == i+1 })
		ctl.mu.Lock()
		if got := ctl.left[i].Restarting; got != restarting {
			t.Errorf("Restarting is %v, want %v", got, restarting)
		}
		ctl.mu.Unlock()
	}
}

func TestClientMovesWithItsServer(t *testing.T) {
	noLeak(t)
	one, two := startController(t, "127.0.0.1:0", nil), startController(t, "127.0.0.1:0", nil)
	for _, c := range []*controller{one, two} {
		if err := c.SetServices(manyServices(3)); err != nil {
			t.Fatal(err)
		}
	}
	node := &Node{Addr: service4.Addr()}
	dmn := startDaemon(t, "", "node-1", func(c *ClientConfig) { c.First = []Message{node} })
	wake := &Wake{Service: service4, Seq: 1}
	if err := dmn.Send(wake); err != nil {
		t.Fatal(err)
	}
	if err := dmn.Send(&PodReport{Event: 1, Service: "a/b", UID: "u"}); err != nil {
		t.Fatal(err)
	}
	received := []int{2, 1, 3} // messages in all at the server of each turn
	for i, c := range []*controller{one, two, one} {
		begin := time.Now()
		if err := dmn.SetServer(c.addr); err != nil {
			t.Fatal(err)
		}
		eventually(t, "connected", func() bool { return dmn.connections() == i+1 })
		eventually(t, "the whole table", func() bool {
			dmn.mu.Lock()
			defer dmn.mu.Unlock()
			return dmn.fulls == i+1
		})
		t.Logf("moved in %v", time.Since(begin))
		// Otherwise the client would send them again to the next server.
		eventually(t, "its messages, acknowledged", func() bool {
			dmn.Client.mu.Lock()
			s := dmn.current
			dmn.Client.mu.Unlock()
			return len(c.received()) == received[i] && len(s.unfinished()) == 0
		})
	}
	// The wake waited for a session and comes after the first message. The pod report did not wait.
	if got := one.received(); !reflect.DeepEqual(got, []Message{node, wake, node}) {
		t.Errorf("got %+v", got)
	}
	eventually(t, "one session left at each", func() bool { return one.leaves() == 1 && two.leaves() == 1 })
	if err := dmn.SetServer("nonsense"); err == nil {
		t.Error("SetServer accepts an address without a port")
	}
	if err := dmn.SetServer(one.addr); err != nil || dmn.connections() != 3 {
		t.Error("SetServer with the same address ended the session")
	}
}

// A client that learns of another server keeps its session until that one answers.
func TestClientStaysUntilTheNextServerAnswers(t *testing.T) {
	noLeak(t)
	one := startController(t, "127.0.0.1:0", nil)
	two := startController(t, "127.0.0.1:0", func(c *ServerConfig) { c.AwaitTable = true })
	if err := one.SetServices(manyServices(3)); err != nil {
		t.Fatal(err)
	}
	dmn := startDaemon(t, one.addr, "node-1", nil)
	eventually(t, "connected", func() bool { return dmn.connections() == 1 && one.joins() == 1 })
	if err := dmn.SetServer(two.addr); err != nil {
		t.Fatal(err)
	}
	// It asks the next one meanwhile, and hears from the one before.
	eventually(t, "some HELLOs", func() bool { return two.Counters().ReceivedDatagrams > 2 })
	refuse := &Refuse{Service: service4, Reason: "it still leads"}
	if err := one.SendAll(refuse, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the message", func() bool { return len(dmn.received()) == 1 })
	if one.leaves() != 0 || two.joins() != 0 {
		t.Fatalf("%d have left the one, %d have joined the other", one.leaves(), two.joins())
	}
	if err := two.SetServices(manyServices(4)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "moved", func() bool { return one.leaves() == 1 && two.joins() == 1 && dmn.connections() == 2 })
	// On its way to another one it may be sent back, or be closed.
	if err := dmn.SetServer(silentAddr(t)); err != nil {
		t.Fatal(err)
	}
	if err := dmn.SetServer(two.addr); err != nil || dmn.connections() != 2 {
		t.Errorf("sent back: %v, %d connections", err, dmn.connections())
	}
	if err := dmn.SetServer(silentAddr(t)); err != nil {
		t.Fatal(err)
	}
	if err := two.Close(); err != nil { // then it has no reason to stay
		t.Fatal(err)
	}
	eventually(t, "disconnected", func() bool {
		dmn.Client.mu.Lock()
		defer dmn.Client.mu.Unlock()
		return dmn.current == nil
	})
	if err := dmn.SetServer(one.addr); err != nil {
		t.Fatal(err)
	}
	eventually(t, "connected again", func() bool { return dmn.connections() == 3 })
}

// silentAddr returns the address of a socket that answers nothing.
func silentAddr(t *testing.T) string {
	t.Helper()
	silent := listen(t, "127.0.0.1:0")
	t.Cleanup(func() { silent.Close() })
	return silent.LocalAddr().String()
}

func TestUnansweredHandshakeDoesNotDelayAMove(t *testing.T) {
	noLeak(t)
	silent := listen(t, "127.0.0.1:0")
	t.Cleanup(func() { silent.Close() })
	ctl := startController(t, "127.0.0.1:0", nil)
	dmn := startDaemon(t, silent.LocalAddr().String(), "node-1", func(c *ClientConfig) { c.Keepalive = time.Hour })
	buf := make([]byte, 2000)
	if _, err := silent.Read(buf); err != nil {
		t.Fatal(err)
	}
	if err := dmn.SetServer(ctl.addr); err != nil {
		t.Fatal(err)
	}
	eventually(t, "connected", func() bool { return dmn.connections() == 1 })
}

func TestNewNodesSplitsTheList(t *testing.T) {
	for _, n := range []int{0, 1, maxNodes, maxNodes + 1, 10 * maxNodes} {
		nodes := make([]NodeInfo, n)
		for i := range nodes {
			nodes[i] = NodeInfo{Name: "n", Addr: service4.Addr()}
		}
		total := 0
		cut := NewNodes(5, nodes, n%2 == 1)
		for i, m := range cut {
			if err := m.check(); err != nil || int(m.Piece) != i || int(m.Pieces) != len(cut) || m.Generation != 5 {
				t.Errorf("%d nodes: %+v: %v", n, m, err)
			}
			total += len(m.Nodes)
		}
		if total != n || len(cut) != max(1, (n+maxNodes-1)/maxNodes) {
			t.Errorf("%d nodes: %d in %d messages", n, total, len(cut))
		}
	}
}

func TestEncodeRefusesWhatIsNotAcknowledged(t *testing.T) {
	if _, err := Encode(&Stats{}); err == nil {
		t.Error("Stats was encoded for a batch, whose last message is to be acknowledged")
	}
	if e, err := Encode(wake(1)); err != nil || e.Size() == 0 {
		t.Errorf("%d bytes, %v", e.Size(), err)
	}
}

// TestManyPeersTakeTurnsForTheWholeTable has more daemons than may receive the whole table at once, among them some
// that leave while others wait. Each place must be given back.
func TestManyPeersTakeTurnsForTheWholeTable(t *testing.T) {
	noLeak(t)
	// 192 daemons on a machine that other tests use too would do nothing but keep their sessions.
	seldom := func(c *ClientConfig) { c.Keepalive = 3 * time.Second }
	ctl := startController(t, "127.0.0.1:0", func(c *ServerConfig) { c.Keepalive = 3 * time.Second })
	const services = 500
	if err := ctl.SetServices(manyServices(services)); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		var all []*daemon
		for i := range 3 * maxWholeTables {
			all = append(all, startDaemon(t, ctl.addr, fmt.Sprintf("node-%d-%d", round, i), seldom))
		}
		for i, d := range all {
			if i%5 == 0 {
				d.Close()
				continue
			}
			eventually(t, fmt.Sprintf("daemon %d has the table", i), func() bool {
				_, _, _, _, n := d.state()
				return n == services
			})
		}
		for _, d := range all {
			d.Close()
		}
	}
	eventually(t, "all places are free", func() bool { return len(ctl.admission) == 0 })
}
