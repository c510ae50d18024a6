// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// attacked is a service that is attacked: after each attack it still answers others.
func attacked(t *testing.T) (*running, Service) {
	r := runEnvoy(t)
	s := shop(t, newHTTPPod(t, ok).at)
	r.set(s)
	get(t, client(t, false), s.at())
	t.Cleanup(func() { get(t, client(t, false), s.at()) })
	return r, s
}

// closedWithin is how long Envoy may take to close the connection of an attacker. It does not measure speed.
const closedWithin = 2 * time.Minute

// connect connects as an attacker.
func connect(t *testing.T, s Service) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp4", s.at().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(2 * closedWithin)); err != nil {
		t.Fatal(err)
	}
	return c
}

// speakHTTP2 begins a connection of HTTP/2, and discards what comes back. ended is closed once the server has closed
// it.
func speakHTTP2(t *testing.T, s Service) (f *http2.Framer, ended <-chan struct{}) {
	t.Helper()
	c := connect(t, s)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f = http2.NewFramer(c, nil)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, c)
	}()
	return f, over
}

// requestHeaders are the encoded headers of a GET.
func requestHeaders(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, h := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "a"}, {":path", "/"}} {
		if err := e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// CVE-2023-44487.
func TestConnectionThatResetsItsRequestsAtOnceIsClosed(t *testing.T) {
	t.Parallel()
	_, s := attacked(t)
	f, ended := speakHTTP2(t, s)
	headers := requestHeaders(t)
	for i := range uint32(20_000) {
		err := f.WriteHeaders(http2.HeadersFrameParam{
			StreamID: 2*i + 1, BlockFragment: headers, EndHeaders: true, EndStream: true,
		})
		if err == nil {
			err = f.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}
		if err != nil {
			t.Logf("closed after %d requests", i)
			return
		}
	}
	select {
	case <-ended:
	case <-time.After(closedWithin):
		t.Error("the connection goes on after 20,000 requests that were reset at once")
	}
}

// CVE-2024-27919, CVE-2024-30255.
func TestConnectionWithHeadersWithoutEndIsClosed(t *testing.T) {
	t.Parallel()
	_, s := attacked(t)
	f, ended := speakHTTP2(t, s)
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: requestHeaders(t)}); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("y", 4000)}); err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 { // 30 MB
		if f.WriteContinuation(1, false, b.Bytes()) != nil {
			t.Logf("closed after %d frames", i)
			return
		}
	}
	select {
	case <-ended:
	case <-time.After(closedWithin):
		t.Error("the connection goes on after 10,000 frames of headers")
	}
}

func TestLargeHeadersAreRefused(t *testing.T) {
	t.Parallel()
	_, s := attacked(t)
	c := connect(t, s)
	go func() {
		_, _ = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: a\r\n")
		for range 5_000 {
			if _, err := fmt.Fprintf(c, "X-A: %s\r\n", strings.Repeat("y", 4000)); err != nil {
				return
			}
		}
	}()
	answer, err := io.ReadAll(c)
	if !bytes.Contains(answer, []byte(" 431 ")) && err == nil {
		t.Errorf("answer %.80q, want 431", answer)
	}
}

// Slowloris: each client sends the beginning of a request, and then a line now and then.
func TestClientsThatNeverEndTheirHeadersAreClosed(t *testing.T) {
	t.Parallel()
	_, s := attacked(t)
	const clients = 100
	closed := make(chan error, clients)
	for range clients {
		c := connect(t, s)
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n"); err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				if _, err := io.WriteString(c, "X: y\r\n"); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		go func() {
			_, err := io.ReadAll(c)
			closed <- err
		}()
	}
	get(t, client(t, false), s.at()) // meanwhile
	for range clients {
		select {
		case <-closed:
		case <-time.After(closedWithin):
			t.Fatalf("clients go on %v after their first line", closedWithin)
		}
	}
}

func TestAnswersThatAreNotHTTPAreRefused(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "SSH-2.0-garbage\r\n\x00\x01\r\n\r\n")
			c.Close()
		}
	}()
	s := shop(t, l.Addr().(*net.TCPAddr).AddrPort())
	s.Addr = s.Pods[0]
	r.set(s)
	code, _ := get(t, client(t, false), s.at())
	if code != http.StatusServiceUnavailable && code != http.StatusBadGateway {
		t.Errorf("status %d", code)
	}
}

// A client may keep its connection for as long as the service says.
func TestIdleConnectionsOfClientsAreClosed(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	s := shop(t, newHTTPPod(t, ok).at)
	s.ClientIdle = time.Second
	r.set(s)
	get(t, client(t, false), s.at())
	c := connect(t, s)
	begin := time.Now()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c) // until Envoy closes it
	if err != nil || !bytes.Contains(answer, []byte(" 200 ")) || time.Since(begin) < 900*time.Millisecond {
		t.Errorf("%.60q after %v, %v", answer, time.Since(begin), err)
	}
}

// Of more requests than a pod may have at a time, the others wait.
func TestPodHasAtMostSoManyRequestsAtATime(t *testing.T) {
	t.Parallel()
	for _, protocol := range []Protocol{HTTP1, HTTP2} {
		r := runEnvoy(t)
		const most = 3
		const allowed = most + 1 // one more for the second thread
		now := make(chan struct{}, 100)
		exceeded := make(chan int, 100)
		pod := newHTTPPod(t, func(w http.ResponseWriter, _ *http.Request) {
			now <- struct{}{}
			if n := len(now); n > allowed {
				exceeded <- n
			}
			time.Sleep(20 * time.Millisecond)
			<-now
		})
		s := shop(t, pod.at)
		s.MaxPerPod, s.Protocol = most, protocol
		r.set(s)
		get(t, client(t, protocol == HTTP2), s.at())
		answers := make(chan int, 30)
		for range 30 {
			cl := client(t, protocol == HTTP2)
			go func() {
				code, _ := get(t, cl, s.at())
				answers <- code
			}()
		}
		for range 30 {
			if code := <-answers; code != http.StatusOK {
				t.Errorf("protocol %d: status %d", protocol, code)
			}
		}
		select {
		case n := <-exceeded:
			t.Errorf("protocol %d: %d requests at a time", protocol, n)
		default:
		}
	}
}
