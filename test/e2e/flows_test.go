// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net"
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// lines is a service of the tests' own server in mode lines, see e2e.Conversation.
func lines(name string) service {
	return service{name: name, env: map[string]string{"MODE": "lines"}}
}

// nft runs nft in a namespace.
func nft(t *testing.T, ns *netlab.Namespace, command string) string {
	t.Helper()
	out, err := ns.Command(t.Context(), "nft", "-j", command).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v: %s", command, err, out)
	}
	return string(out)
}

// The client loses the SYN-ACKs and repeats its SYN, for a warm and for a cold service.
func TestRepeatedSYNIsTheSameFlow(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, lines("lines"))
	address := l.address(t, "lines")
	first := e2e.MustConverse(t, l.Client(), address)
	first.Close()
	l.until(t, "lines", "the first flow counted", func(s status.Status) bool { return s.Traffic.NewFlows == 1 })
	for i, what := range []string{"warm", "cold"} {
		if what == "cold" {
			l.sleep(t, "lines")
		}
		before := l.service(t, "lines").Traffic.NewFlows
		again := retransmits(t, l.Client())
		nft(t, l.Client(), "add table ip lose; add chain ip lose in { type filter hook input priority 0; }; "+
			"add rule ip lose in tcp flags & (syn|ack) == syn|ack counter drop")
		done := make(chan error, 1)
		var k *e2e.Conversation
		go func() {
			c, err := e2e.Dial(l.Client().Dialer(), address)
			if err == nil {
				k, err = e2e.Greeted(c)
			}
			done <- err
		}()
		for deadline := time.Now().Add(e2e.Patience); retransmits(t, l.Client()) == again; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the client does not repeat its SYN")
			}
		}
		nft(t, l.Client(), "delete table ip lose")
		if err := <-done; err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		k.MustEcho(t, "hello")
		if same := k.Greeting.Instance == first.Greeting.Instance; same != (what == "warm") {
			t.Errorf("%s: answered by process %s, before by %s", what, k.Greeting.Instance, first.Greeting.Instance)
		}
		if n := len(l.wakes(t, "lines")); n != i+1 {
			t.Errorf("%s: %d wakes, want %d", what, n, i+1)
		}
		k.Close()
		s := l.untilNoFlows(t, "lines")
		if what == "warm" && s.Traffic.NewFlows > before+1 {
			t.Errorf("a flow whose SYN came twice was counted %d times", s.Traffic.NewFlows-before)
		}
	}
}

// A client that has sent all it had still gets its answer; the flow lives until both sides have closed.
func TestHalfClosedConnectionStillDelivers(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, lines("lines"))
	k := e2e.MustConverse(t, l.Client(), l.address(t, "lines"))
	k.MustEcho(t, "four")
	if err := k.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(k.Reader)
	if err != nil || string(rest) != "5 bytes\n" {
		t.Errorf("after the client's FIN: %q, %v", rest, err)
	}
	l.untilNoFlows(t, "lines")
}

func TestResetOfEitherSideEndsTheFlow(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, lines("lines"))
	address := l.address(t, "lines")
	const flows = 20
	for i := range flows {
		k := e2e.MustConverse(t, l.Client(), address)
		k.MustEcho(t, "hello")
		if i%2 == 0 {
			if err := k.SetLinger(0); err != nil {
				t.Fatal(err)
			}
			k.Close()
			continue
		}
		if got, err := k.Say("reset"); err == nil {
			t.Errorf("after a reset by the server: %q", got)
		}
	}
	l.untilNoFlows(t, "lines")
	e2e.MustConverse(t, l.Client(), address).MustEcho(t, "still there")
}

// The client uses the same port again right after either side has closed or reset the connection.
func TestPortIsReusedAtOnce(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, lines("lines"))
	address := l.address(t, "lines")
	dialer := l.Client().Dialer()
	dialer.LocalAddr = &net.TCPAddr{IP: l.Client().Addr.AsSlice(), Port: 40000}
	dialer.Timeout = e2e.Patience
	for i := range 30 {
		c, err := dialer.Dial("tcp", address)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		k, err := e2e.Greeted(c.(*net.TCPConn))
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		k.MustEcho(t, "hello")
		switch i % 3 {
		case 0: // the client resets
			if err := k.SetLinger(0); err != nil {
				t.Fatal(err)
			}
		case 1: // the server resets
			if got, err := k.Say("reset"); err == nil {
				t.Errorf("after a reset by the server: %q", got)
			}
		case 2: // the server closes first, and so has the port in TIME-WAIT when it is reused
			if got, err := k.Say("close"); err != io.EOF {
				t.Errorf("after a close by the server: %q, %v", got, err)
			}
		}
		k.Close()
	}
	l.untilNoFlows(t, "lines")
}

// retransmits returns the number of SYNs that a client has repeated.
func retransmits(t *testing.T, client *netlab.Namespace) uint64 {
	t.Helper()
	n, err := client.SYNRetransmits()
	if err != nil {
		t.Fatal(err)
	}
	return n
}
