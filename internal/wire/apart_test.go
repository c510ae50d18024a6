// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"
)

// ofSession returns a datagram that begins as one of a session does.
func ofSession(id uint64) []byte {
	d := append(clearStart(kindData), make([]byte, dataHeader-clearHeader+tagSize)...)
	binary.BigEndian.PutUint64(d[clearHeader:], id)
	return d
}

// What does not carry the server's mark waits in a buffer of its own, however much of it there is.
func TestStrangersHaveABufferOfTheirOwn(t *testing.T) {
	const mark = 0x89abcdef
	for _, at := range []struct{ listen, dial string }{
		{"127.0.0.1:0", "127.0.0.1"}, {"[::]:0", "127.0.0.1"}, {"[::]:0", "::1"},
	} {
		t.Run(at.listen+" by "+at.dial, func(t *testing.T) {
			conn, err := Listen(at.listen)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			apart, err := setApart(conn, mark)
			if err != nil || apart == nil {
				t.Fatal(apart, err)
			}
			defer apart.Close()
			_, port, _ := net.SplitHostPort(conn.LocalAddr().String())
			client, err := net.Dial("udp", net.JoinHostPort(at.dial, port))
			if err != nil {
				t.Skip(err) // a machine without IPv6
			}
			defer client.Close()
			session := ofSession(mark<<32 | 5)
			strange := [][]byte{
				{}, {1}, clearStart(kindData), session[:len(session)-1], ofSession(5<<32 | mark), ofSession((mark+1)<<32 | 5),
				newHelloOf("n").seal(testKey.ForNode("n"), newNonce()), make([]byte, maxDatagram),
			}
			other := bytes.Clone(session)
			other[2]++ // another version
			strange = append(strange, other)
			for _, d := range strange {
				if _, err := client.Write(d); err != nil {
					t.Fatal(err)
				}
			}
			for range 5000 { // more than the buffer holds
				if _, err := client.Write(make([]byte, maxDatagram)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := client.Write(session); err != nil {
				t.Fatal(err)
			}
			var b [maxDatagram + 1]byte
			read := func(c *net.UDPConn) []byte {
				t.Helper()
				if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
					t.Fatal(err)
				}
				n, err := c.Read(b[:])
				if err != nil {
					t.Fatal(err)
				}
				return b[:n]
			}
			if got := read(conn); !bytes.Equal(got, session) {
				t.Errorf("the session's datagram arrived as %x", got)
			}
			for i, want := range strange {
				if got := read(apart); !bytes.Equal(got, want) {
					t.Errorf("stranger %d arrived as %x, want %x", i, got, want)
				}
			}
		})
	}
}

// A socket that is not from Listen has no second one, and a server whose socket is from it hears daemons by both.
func TestServersWorkWithAndWithoutASecondSocket(t *testing.T) {
	for name, open := range map[string]func() *net.UDPConn{
		"one": func() *net.UDPConn { return listen(t, "127.0.0.1:0") },
		"two": func() *net.UDPConn {
			c, err := Listen("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctl := startController(t, "127.0.0.1:0", func(c *ServerConfig) {
				_ = c.Conn.Close()
				c.Conn = open()
			})
			if apart := ctl.Server.apart != nil; apart != (name == "two") {
				t.Fatalf("set apart: %v", apart)
			}
			startDaemon(t, ctl.cfg.Conn.LocalAddr().String(), "node-1", nil)
			p := ctl.peer(t, "node-1")
			if p.ID>>32 != uint64(ctl.mark) {
				t.Errorf("session %x without the mark %x", p.ID, ctl.mark)
			}
			if err := ctl.SendWait(t.Context(), p.ID, wake(0)); err != nil {
				t.Error(err)
			}
			stranger := dial(t, ctl.cfg.Conn.LocalAddr().String())
			sendAll(t, ctl, func(d []byte) { _, _ = stranger.Write(d) }, [][]byte{ofSession(1), ofSession(p.ID), {1, 2, 3}})
			eventually(t, "they are dropped", func() bool {
				c := ctl.Counters()
				return c.DroppedUnknown == 2 && c.DroppedNoise == 1
			})
		})
	}
}

// The reader of strangers leaves the processor to sessions during a flood, and never while nodes come back.
func TestTheReaderOfStrangersRestsDuringFloods(t *testing.T) {
	for _, at := range []struct {
		n, dropped int
		rests      bool
	}{
		{serverBatch, serverBatch, true}, {serverBatch, serverBatch / 2, true},
		{serverBatch, serverBatch/2 - 1, false}, {serverBatch, 0, false},
		{serverBatch - 1, serverBatch - 1, false}, {1, 1, false},
	} {
		if got := restOfStrangers(at.n, at.dropped) > 0; got != at.rests {
			t.Errorf("%d datagrams, %d of them dropped: rests %t", at.n, at.dropped, got)
		}
	}
	if noRest(serverBatch, serverBatch) != 0 {
		t.Error("the reader of sessions rests")
	}
}

// A daemon that comes back gets through while strangers flood the server, whose reader rests.
func TestADaemonComesBackDuringAFlood(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", func(c *ServerConfig) {
		_ = c.Conn.Close()
		var err error
		if c.Conn, err = Listen("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	stranger := dial(t, ctl.cfg.Conn.LocalAddr().String())
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				for range 4 * serverBatch {
					_, _ = stranger.Write(ofSession(1))
				}
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	eventually(t, "the flood arrives", func() bool { return ctl.Counters().DroppedUnknown > 10*serverBatch })
	startDaemon(t, ctl.cfg.Conn.LocalAddr().String(), "node-1", nil)
	ctl.peer(t, "node-1")
}
