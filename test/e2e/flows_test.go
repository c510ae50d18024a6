// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/testutil/netlab"
)

// lines is a service of the tests' own server that speaks first and then repeats lines.
func lines(name string) service {
	return service{name: name, env: map[string]string{"MODE": "lines"}}
}

// talk is a conversation with such a service.
type talk struct {
	*net.TCPConn
	r        *bufio.Reader
	greeting answer
}

// newTalk connects and reads the greeting.
func newTalk(t *testing.T, from *netlab.Namespace, address string) *talk {
	t.Helper()
	k, err := converse(mustDial(t, from, address))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func converse(c *net.TCPConn) (*talk, error) {
	k := &talk{TCPConn: c, r: bufio.NewReader(c)}
	line, err := k.r.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &k.greeting)
	}
	if err != nil {
		return nil, fmt.Errorf("greeting %q: %w", line, err)
	}
	return k, nil
}

// say sends a line and returns what comes back.
func (k *talk) say(line string) (string, error) {
	if err := k.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(k, line+"\n"); err != nil {
		return "", err
	}
	return k.r.ReadString('\n')
}

// mustEcho fails the test if the line does not come back.
func (k *talk) mustEcho(t *testing.T, line string) {
	t.Helper()
	if got, err := k.say(line); err != nil || got != line+"\n" {
		t.Fatalf("said %q, heard %q, %v", line, got, err)
	}
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

// TestLostSYNACK: the client loses the SYN-ACKs, sends its SYN again, and is the same flow, for a warm and a cold service.
func TestLostSYNACK(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, lines("lines"))
	address := l.address(t, "lines")
	first := newTalk(t, l.Client(), address)
	first.Close()
	l.until(t, "lines", "the first flow counted", func(s controller.Status) bool { return s.Traffic.NewFlows == 1 })
	for i, what := range []string{"warm", "cold"} {
		if what == "cold" {
			l.sleep(t, "lines")
		}
		before := l.service(t, "lines").Traffic.NewFlows
		again := retransmits(t, l.Client())
		nft(t, l.Client(), "add table ip lose; add chain ip lose in { type filter hook input priority 0; }; "+
			"add rule ip lose in tcp flags & (syn|ack) == syn|ack counter drop")
		done := make(chan error, 1)
		var k *talk
		go func() {
			c, err := dial(l.Client(), address)
			if err == nil {
				k, err = converse(c)
			}
			done <- err
		}()
		for deadline := time.Now().Add(patience); retransmits(t, l.Client()) == again; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the client does not send its SYN again")
			}
		}
		nft(t, l.Client(), "delete table ip lose")
		if err := <-done; err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		k.mustEcho(t, "hello")
		if same := k.greeting.Instance == first.greeting.Instance; same != (what == "warm") {
			t.Errorf("%s: answered by process %s, before by %s", what, k.greeting.Instance, first.greeting.Instance)
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

// TestHalfClosed: a client that has sent all it had still gets its answer; the flow lives until both sides are done.
func TestHalfClosed(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, lines("lines"))
	k := newTalk(t, l.Client(), l.address(t, "lines"))
	k.mustEcho(t, "four")
	if err := k.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(k.r)
	if err != nil || string(rest) != "5 bytes\n" {
		t.Errorf("after the client's FIN: %q, %v", rest, err)
	}
	l.untilNoFlows(t, "lines")
}

// TestResets of either side end the flow at once.
func TestResets(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, lines("lines"))
	address := l.address(t, "lines")
	const flows = 20
	for i := range flows {
		k := newTalk(t, l.Client(), address)
		k.mustEcho(t, "hello")
		if i%2 == 0 {
			if err := k.SetLinger(0); err != nil {
				t.Fatal(err)
			}
			k.Close()
			continue
		}
		if got, err := k.say("reset"); err == nil {
			t.Errorf("after a reset by the server: %q", got)
		}
	}
	l.untilNoFlows(t, "lines")
	newTalk(t, l.Client(), address).mustEcho(t, "still there")
}

// TestPortReuse: the client takes the same port again and again, right after either side has closed or reset.
func TestPortReuse(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, lines("lines"))
	address := l.address(t, "lines")
	dialer := l.Client().Dialer()
	dialer.LocalAddr = &net.TCPAddr{IP: l.Client().Addr.AsSlice(), Port: 40000}
	dialer.Timeout = patience
	for i := range 30 {
		c, err := dialer.Dial("tcp", address)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		k, err := converse(c.(*net.TCPConn))
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		k.mustEcho(t, "hello")
		switch i % 3 {
		case 0: // the client resets
			if err := k.SetLinger(0); err != nil {
				t.Fatal(err)
			}
		case 1: // the server resets
			if got, err := k.say("reset"); err == nil {
				t.Errorf("after a reset by the server: %q", got)
			}
		case 2: // the server closes first, so that its side waits (TIME-WAIT) while the port comes again
			if got, err := k.say("close"); err != io.EOF {
				t.Errorf("after a close by the server: %q, %v", got, err)
			}
		}
		k.Close()
	}
	l.untilNoFlows(t, "lines")
}
