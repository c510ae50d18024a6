// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"testing"
	"time"
)

// The expected value is from another implementation of HKDF (RFC 5869).
func TestKeyOfANode(t *testing.T) {
	master := Key(counting(0, KeySize))
	key := master.ForNode("node-1")
	if got := hex.EncodeToString(key[:]); got != "b3ff4cef1e909abc225d7aa8fed95758597a023dbcfec94e3fb4d8beef88cb2a" {
		t.Errorf("key of node-1: %s", got)
	}
	if key == master.ForNode("node-2") || key == master || key.ForNode("node-1") == key {
		t.Error("keys of different nodes are equal")
	}
}

// strike sends a HELLO of a client with a stolen key, from an address of its own.
func strike(t *testing.T, ctl *controller, d []byte) {
	t.Helper()
	stranger := dial(t, ctl.addr)
	sendAll(t, ctl, func(d []byte) { _, _ = stranger.Write(d) }, [][]byte{d})
	wantSilence(t, stranger)
}

func TestStolenKeyCannotSpeakForAnotherNode(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	victim := startDaemon(t, ctl.addr, "node-b", nil)
	p := ctl.peer(t, "node-b")
	eventually(t, "connected", func() bool { return victim.connections() == 1 })
	stolen := testKey.ForNode("node-a")

	// A client that says it is node-b.
	thief := startDaemon(t, ctl.addr, "node-b", func(c *ClientConfig) { c.Key = stolen })
	eventually(t, "refused", func() bool { return ctl.Counters().DroppedSeal >= 3 })
	if thief.Counters().ReceivedDatagrams != 0 {
		t.Error("a client with another node's key was answered")
	}
	thief.Close()
	// A HELLO of its own node, with the name exchanged.
	own := newHelloOf("node-a").seal(stolen, newNonce())
	copy(own[clearHeader+1:], "node-b")
	seals := ctl.Counters().DroppedSeal
	strike(t, ctl, own)
	if ctl.Counters().DroppedSeal != seals+1 {
		t.Errorf("counters %+v", ctl.Counters())
	}
	// Nor may the sealed part name a node.
	h := newHelloOf("node-b")
	named := append(append(h.encode(), byte(len(h.node))), h.node...)
	strike(t, ctl, sealHandshake(handshakeSeal(stolen, useHello), newHelloOf("node-a").header(), newNonce(), named))
	// Datagrams in the session of the other node.
	strike(t, ctl, sealData(newSessionSeals(stolen, random{1}, random{2}).toServer,
		append(beginData(nil, p.ID, 1000), frameGoodbye, goodbyeClosed)))

	// The key opens its own node only, as the master key does none.
	strike(t, ctl, newHelloOf("node-a").seal(testKey, newNonce()))
	thief = startDaemon(t, ctl.addr, "node-a", func(c *ClientConfig) { c.Key = stolen })
	ctl.peer(t, "node-a")
	if err := thief.Send(wake(1)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its message", func() bool { return len(ctl.received()) == 1 })
	if err := ctl.SendWait(t.Context(), p.ID, wake(1)); err != nil || ctl.joins() != 2 || ctl.leaves() != 0 {
		t.Errorf("%v; %d joined, %d left", err, ctl.joins(), ctl.leaves())
	}
}

// A client takes nobody with another node's key for the controller.
func TestStolenKeyDoesNotMakeAController(t *testing.T) {
	noLeak(t)
	imposter := startController(t, "127.0.0.1:0", func(c *ServerConfig) { c.Key = testKey.ForNode("node-a") })
	unanswered := make(chan struct{}, 100)
	dmn := startDaemon(t, imposter.addr, "node-b", func(c *ClientConfig) {
		c.Keepalive, c.Unanswered = 20*time.Millisecond, func() { unanswered <- struct{}{} }
	})
	<-unanswered
	if dmn.connections() != 0 || imposter.joins() != 0 || imposter.Counters().DroppedSeal == 0 {
		t.Errorf("%d connections; counters %+v", dmn.connections(), imposter.Counters())
	}
}

func TestNodeCannotDisplaceHandshakesOfOthers(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	hello := func(node string) []byte {
		return newHelloOf(node).seal(testKey.ForNode(node), newNonce())
	}
	sender := dial(t, ctl.addr)
	write := func(d []byte) { _, _ = sender.Write(d) }
	sendAll(t, ctl, write, [][]byte{hello("node-b")})
	var flood [][]byte
	for range 2 * maxPending {
		flood = append(flood, hello("node-a"))
	}
	sendAll(t, ctl, write, flood)
	ctl.Server.mu.Lock()
	defer ctl.Server.mu.Unlock()
	if a, b := ctl.pending.ofNode["node-a"], ctl.pending.ofNode["node-b"]; a != maxPendingNode || b != 1 {
		t.Errorf("%d handshakes of node-a, %d of node-b", a, b)
	}
}

func TestSetKey(t *testing.T) {
	noLeak(t)
	rotated := testKey
	rotated[7]++
	ctl := startController(t, "127.0.0.1:0", nil)
	dmn := startDaemon(t, ctl.addr, "node-1", func(c *ClientConfig) { c.Key = rotated.ForNode("node-1") })
	eventually(t, "refused", func() bool { return ctl.Counters().DroppedSeal >= 2 })
	dmn.SetKey(testKey.ForNode("node-1"))
	eventually(t, "connected", func() bool { return dmn.connections() == 1 })

	// The next leader has another master key: the client stays with the one before until it has the new key.
	next := startController(t, "127.0.0.1:0", func(c *ServerConfig) { c.Key = rotated })
	if err := dmn.SetServer(next.addr); err != nil {
		t.Fatal(err)
	}
	eventually(t, "refused", func() bool { return next.Counters().DroppedSeal >= 2 })
	if ctl.leaves() != 0 {
		t.Error("the session ended")
	}
	dmn.SetKey(rotated.ForNode("node-1"))
	eventually(t, "moved", func() bool { return dmn.connections() == 2 && ctl.leaves() == 1 && next.joins() == 1 })
}

func FuzzHello(f *testing.F) {
	v := readVectors(f)
	f.Add(unhex(f, v.Hello.Datagram))
	for _, d := range v.Refused["datagram"] {
		f.Add(unhex(f, d))
	}
	master := Key(unhex(f, v.Key))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, key, err := openOne(bytes.Clone(b), master)
		if err == nil && hex.EncodeToString(b) != v.Hello.Datagram {
			t.Fatalf("%x is accepted as a HELLO of %+v", b, h)
		}
		if err == nil && key != master.ForNode(h.node) {
			t.Fatalf("the HELLO of %s was sealed with another key", h.node)
		}
	})
}

func TestReplayWindowAgreesWithASetOfCounters(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, spread := range []uint64{4, 100, replayBits - 1, replayBits + 500, 5 * replayBits} {
		var w replayWindow
		seen := map[uint64]bool{}
		var top uint64
		for range 20_000 {
			c := top - min(top, rnd.Uint64N(spread+1)) + rnd.Uint64N(spread+1)
			want := !seen[c] && (c >= top || top-c <= replayBits)
			if got := w.fresh(c); got != want {
				t.Fatalf("spread %d: counter %d, top %d: fresh is %v, want %v", spread, c, top, got, want)
			}
			if want {
				w.commit(c)
				seen[c] = true
				top = max(top, c+1)
			}
		}
	}
	var w replayWindow
	w.commit(maxCounter)
	if w.fresh(maxCounter) || !w.fresh(maxCounter-1) || w.fresh(0) {
		t.Error("the highest counter is handled wrongly")
	}
}
