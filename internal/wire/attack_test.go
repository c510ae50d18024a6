// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"
)

// dial opens a socket to a server for a stranger, who has no key.
func dial(t *testing.T, server string) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(server)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// connectedThroughRelay starts a controller and a daemon, and connects them through a relay that captures datagrams.
func connectedThroughRelay(t *testing.T) (*controller, *relay, *daemon, Peer) {
	t.Helper()
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	r := startRelay(t, ctl.addr)
	dmn := startDaemon(t, r.addr(), "node-1", nil)
	p := ctl.peer(t, "node-1")
	eventually(t, "connected", func() bool { return dmn.connections() == 1 })
	return ctl, r, dmn, p
}

// sendAll sends datagrams and waits until the server has counted them. It sends small batches, because loopback drops
// what overflows the server's socket buffer.
func sendAll(t *testing.T, ctl *controller, write func([]byte), datagrams [][]byte) {
	t.Helper()
	for len(datagrams) > 0 {
		n := min(len(datagrams), 32)
		want := ctl.Counters().ReceivedDatagrams + uint64(n)
		for _, d := range datagrams[:n] {
			write(bytes.Clone(d))
		}
		datagrams = datagrams[n:]
		eventually(t, "all datagrams there", func() bool { return ctl.Counters().ReceivedDatagrams >= want })
	}
}

// wantSilence fails the test if the server answers a stranger.
func wantSilence(t *testing.T, c *net.UDPConn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var buf [2048]byte
	if n, err := c.Read(buf[:]); err == nil {
		t.Errorf("answered with %d bytes: %x", n, buf[:n])
	}
}

func TestFloodOfGarbageHarmsNoSession(t *testing.T) {
	ctl, r, _, p := connectedThroughRelay(t)
	if err := ctl.SendWait(t.Context(), p.ID, wake(0)); err != nil {
		t.Fatal(err)
	}
	var captured [][]byte
	r.set(func() { captured = append(captured, r.captured...) })

	rnd := rand.New(rand.NewPCG(7, 8))
	var flood [][]byte
	for i := range 20_000 {
		var d []byte
		switch i % 4 {
		case 0: // noise
			d = make([]byte, rnd.IntN(1500))
			for i := range d {
				d[i] = byte(rnd.Uint32())
			}
		case 1: // noise after a valid header
			d = make([]byte, 4+rnd.IntN(1300))
			for i := range d {
				d[i] = byte(rnd.Uint32())
			}
			copy(d, []byte{magic0, magic1, protocolVersion, byte(rnd.IntN(5))})
		case 2: // a captured datagram with one bit flipped
			d = bytes.Clone(captured[rnd.IntN(len(captured))])
			d[rnd.IntN(len(d))] ^= 1 << rnd.IntN(8)
		case 3: // a captured datagram with another length
			whole := captured[rnd.IntN(len(captured))]
			d = append(bytes.Clone(whole), make([]byte, 400)...)
			if d = d[:rnd.IntN(len(d))]; len(d) == len(whole) {
				d = d[:len(d)-1]
			}
		}
		flood = append(flood, d)
	}
	stranger := dial(t, ctl.addr)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	sendAll(t, ctl, func(d []byte) { _, _ = stranger.Write(d) }, flood)
	// From the address of the session, the same must not end the session either.
	sendAll(t, ctl, r.inject, flood[:4000])
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	wantSilence(t, stranger)
	if err := ctl.SendWait(t.Context(), p.ID, wake(1)); err != nil {
		t.Fatal(err)
	}
	c := ctl.Counters()
	dropped := c.DroppedNoise + c.DroppedVersion + c.DroppedSeal + c.DroppedUnknown + c.DroppedReplay
	if dropped < 23_000 || c.Lost != 0 || c.Sessions != 1 ||
		c.DroppedNoise == 0 || c.DroppedSeal == 0 || c.DroppedVersion == 0 || c.DroppedUnknown == 0 {
		t.Errorf("counters %+v", c)
	}
}

func TestReplayedDatagramsHaveNoEffect(t *testing.T) {
	ctl, r, dmn, p := connectedThroughRelay(t)
	for i := range 50 {
		if err := dmn.Send(wake(i)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all there", func() bool { return len(ctl.received()) == 50 })
	var all [][]byte
	r.set(func() { all = append(all, r.captured...) })
	var data uint64
	for _, d := range all {
		if d[3] == kindData {
			data++
		}
	}
	stranger := dial(t, ctl.addr)
	for range 3 {
		sendAll(t, ctl, r.inject, all) // from the address of the session, too
		sendAll(t, ctl, func(d []byte) { _, _ = stranger.Write(d) }, all)
	}
	if err := ctl.SendWait(t.Context(), p.ID, wake(1)); err != nil {
		t.Fatal(err)
	}
	wantWakes(t, ctl.received(), 0, 49)
	if ctl.joins() != 1 || ctl.leaves() != 0 || dmn.connections() != 1 {
		t.Errorf("%d joined, %d left", ctl.joins(), ctl.leaves())
	}
	c := ctl.Counters()
	if data == 0 || c.DroppedReplay < 3*data || c.DroppedUnknown < 3*data {
		t.Errorf("counters %+v", c)
	}

	// After the session, replaying all of it creates no session, neither here nor at a new server with the same key.
	dmn.Close()
	eventually(t, "gone", func() bool { return ctl.leaves() == 1 })
	sendAll(t, ctl, r.inject, all)
	again := startController(t, "127.0.0.1:0", nil)
	other := dial(t, again.addr)
	sendAll(t, again, func(d []byte) { _, _ = other.Write(d) }, all)
	peers := len(again.Peers()) + len(ctl.Peers())
	if ctl.joins() != 1 || again.joins() != 0 || peers != 0 || len(ctl.received()) != 50 {
		t.Error("replayed datagrams created a session or a message")
	}
}

func TestReplayedHelloFromManyAddressesTakesOnePlace(t *testing.T) {
	ctl, r, _, p := connectedThroughRelay(t)
	var hello []byte
	r.set(func() { hello = bytes.Clone(r.captured[0]) })
	if hello[3] != kindHello {
		t.Fatal("the first datagram is not a HELLO")
	}
	for range 40 {
		stranger := dial(t, ctl.addr)
		sendAll(t, ctl, func(d []byte) { _, _ = stranger.Write(d) }, [][]byte{hello, hello})
	}
	ctl.mu.Lock()
	joined := len(ctl.joined)
	ctl.mu.Unlock()
	if err := ctl.SendWait(t.Context(), p.ID, wake(1)); err != nil || joined != 1 {
		t.Errorf("%v, %d sessions", err, joined)
	}
	ctl.Server.mu.Lock()
	if n := len(ctl.pending.list); n > 1 {
		t.Errorf("one HELLO takes %d places", n)
	}
	ctl.Server.mu.Unlock()

	if n := ctl.Counters().DroppedReplay; n < 2*39 {
		t.Errorf("only %d of the replays from other addresses were dropped", n)
	}

	// Many different HELLOs: pending handshakes are limited, and a daemon can still connect.
	var many [][]byte
	for i := range maxPending + 100 {
		h := newHelloOf(fmt.Sprintf("node-%d", i%500))
		many = append(many, h.seal(testKey.ForNode(h.node), newNonce()))
	}
	stranger := dial(t, ctl.addr)
	sendAll(t, ctl, func(d []byte) { _, _ = stranger.Write(d) }, many)
	ctl.Server.mu.Lock()
	if n := len(ctl.pending.list); n > maxPending {
		t.Errorf("%d handshakes pending", n)
	}
	ctl.Server.mu.Unlock()
	startDaemon(t, ctl.addr, "node-2", nil)
	ctl.peer(t, "node-2")
	if ctl.leaves() != 0 {
		t.Error("a session ended")
	}
}

// newHelloOf returns a HELLO that is newer than those of real clients.
func newHelloOf(node string) *hello {
	return &hello{client: newRandom(), session: newID(), instance: 1 << 63, sent: 1, node: node}
}

func TestWrongKeyAndOtherVersionsAreCountedButNotAnswered(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	wrong := startDaemon(t, ctl.addr, "node-1", func(c *ClientConfig) { c.Key[5]++ })
	eventually(t, "wrong key counted", func() bool { return ctl.Counters().DroppedSeal >= 3 })
	stranger := dial(t, ctl.addr)
	d := newHelloOf("node-2").seal(testKey.ForNode("node-2"), newNonce())
	for _, v := range []byte{0, protocolVersion - 1, protocolVersion + 1, 255} {
		d[2] = v
		sendAll(t, ctl, func(d []byte) { _, _ = stranger.Write(d) }, [][]byte{d})
	}
	eventually(t, "other versions counted", func() bool { return ctl.Counters().DroppedVersion == 4 })
	want := fmt.Sprintf("unsupported version of the protocol: 255, and this side has %d: run the same release of Wangell "+
		"on both", protocolVersion)
	if _, err := datagramKind(d); err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %q", err, want)
	}
	wantSilence(t, stranger)
	if c := wrong.Counters(); c.ReceivedDatagrams != 0 || ctl.joins() != 0 || ctl.Counters().SentDatagrams != 0 {
		t.Error("the wrong key was answered")
	}
	// The header is authenticated too: an altered kind fails.
	h := newHelloOf("node-2")
	header := h.header()
	header[3] = kindWelcome
	sealed := sealHandshake(handshakeSeal(testKey.ForNode("node-2"), useHello), header, newNonce(),
		h.encode())
	sealed[3] = kindHello
	before := ctl.Counters().DroppedSeal
	sendAll(t, ctl, func(d []byte) { _, _ = stranger.Write(d) }, [][]byte{sealed})
	eventually(t, "altered header counted", func() bool { return ctl.Counters().DroppedSeal > before })
}

// The false server replays a WELCOME of a real one, and reflects HELLOs.
func TestClientDoesNotConnectToAFalseServer(t *testing.T) {
	noLeak(t)
	w := welcome{client: newRandom(), server: newRandom(), session: 5, sent: 1, echo: 1, echoArrived: 1}
	replay := w.seal(testKey.ForNode("node-1"), newNonce())
	conn := listen(t, "127.0.0.1:0")
	answered := make(chan int)
	go func() {
		buf := make([]byte, 2048)
		for n := 0; ; n++ {
			size, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				answered <- n
				return
			}
			_, _ = conn.WriteToUDPAddrPort(replay, from)
			_, _ = conn.WriteToUDPAddrPort(buf[:size], from) // the client's own HELLO
		}
	}()
	dmn := startDaemon(t, conn.LocalAddr().String(), "node-1", nil)
	eventually(t, "dropped", func() bool {
		c := dmn.Counters()
		return c.DroppedReplay >= 3 && c.DroppedUnknown >= 3
	})
	if dmn.connections() != 0 || dmn.Counters().Sessions != 0 {
		t.Error("connected to a replay")
	}
	conn.Close()
	<-answered
}
