// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/envoytest"
	"wangell.loutres.me/test/testutil/freeport"
	"wangell.loutres.me/test/testutil/syncbuf"
)

// running is an Envoy that a Server configures.
type running struct {
	testing.TB
	server    *Server
	connected chan Proxy
	called    chan Caller
	log       *syncbuf.Buffer
	counts    counts
	pid       int
	socket    string
}

// runEnvoy starts Envoy, without a service yet.
func runEnvoy(t testing.TB) *running {
	t.Helper()
	r := serve(t)
	r.pid = r.start(loopback)
	return r
}

// serve starts the server, without an Envoy yet.
func serve(t testing.TB) *running {
	t.Helper()
	dir, err := os.MkdirTemp("", "envoy") // shorter than t.TempDir, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &running{
		TB: t, connected: make(chan Proxy, 2), called: make(chan Caller, 8), log: &syncbuf.Buffer{},
		socket: filepath.Join(dir, "xds.sock"),
	}
	log := slog.New(slog.NewTextHandler(r.log, nil))
	r.server, err = Serve(Config{
		Socket: r.socket, Owner: os.Getuid(), Log: log, Connected: func(_ context.Context, p Proxy) { r.connected <- p },
		Requests: r.counts.add, Called: func(c Caller) { r.called <- c },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.server.Close)
	return r
}

// created is when the Envoys of tests were created.
var created = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

// start starts an Envoy at an address, and returns its process.
func (r *running) start(at netip.Addr) (pid int) {
	r.Helper()
	return r.startAs(Proxy{Addr: at, Netns: "/ns", Created: created})
}

// startAs starts an Envoy, and returns its process.
func (r *running) startAs(p Proxy) (pid int) {
	t := r.TB
	t.Helper()
	config, err := Bootstrap(BootstrapConfig{
		Proxy: p, Socket: r.socket, MaxHeap: 1 << 30, MaxConnections: 20_000,
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(envoytest.Path(t), "--config-yaml", string(config), "--disable-hot-restart", "--concurrency", "2",
		"--log-level", "warning", "--drain-strategy", "immediate")
	cmd.Stderr = r.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid = cmd.Process.Pid
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	files.Cur = files.Max
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &files, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return pid
}

// set configures services and waits until Envoy has them.
func (r *running) set(services ...Service) {
	r.Helper()
	if err := r.server.Set(services); err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	if err := r.server.AwaitPods(ctx); err != nil {
		r.Fatalf("Envoy does not take over the pods: %v", err)
	}
}

// httpPod serves HTTP/1.1 and HTTP/2 with prior knowledge, and counts requests.
type httpPod struct {
	at       netip.AddrPort
	requests atomic.Int64
	server   *http.Server
}

func newHTTPPod(t testing.TB, handle http.HandlerFunc) *httpPod {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &httpPod{at: l.Addr().(*net.TCPAddr).AddrPort()}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	p.server = &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		handle(w, r)
	})}
	go func() { _ = p.server.Serve(l) }()
	t.Cleanup(func() { p.server.Close() })
	return p
}

// shop is a service with these pods.
func shop(t testing.TB, pods ...netip.AddrPort) Service {
	return Service{
		Name: "default/shop", Addr: freeport.Reserve(t), Port: freeport.Reserve(t).Port(),
		ClientIdle: time.Hour, Silence: time.Minute, Pods: pods,
	}
}

// at is where the Envoy of runEnvoy listens for the service's clients.
func (s Service) at() netip.AddrPort { return netip.AddrPortFrom(loopback, s.Port) }

// loopback is the address of the Envoy of runEnvoy.
var loopback = netip.MustParseAddr("127.0.0.1")

// ok answers with the request's body.
func ok(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }

// client returns an HTTP client with one connection.
func client(t testing.TB, http2 bool) *http.Client {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	tr := &http.Transport{MaxConnsPerHost: 1, Protocols: protocols}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 5 * time.Minute}
}

// get makes a request and returns the answer's status and body; it waits until Envoy listens.
func get(t testing.TB, c *http.Client, at netip.AddrPort) (int, string) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		r, err := c.Get(fmt.Sprintf("http://%s/", at))
		if err != nil {
			if time.Since(begin) < 3*time.Minute && strings.Contains(err.Error(), "refused") {
				continue
			}
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(body)
	}
}

func TestRequestsOfOneConnectionGoToAllPods(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	a, b, c := newHTTPPod(t, ok), newHTTPPod(t, ok), newHTTPPod(t, ok)
	s := shop(t, a.at, b.at, c.at)
	r.set(s)
	if p := <-r.connected; p != (Proxy{Addr: loopback, Netns: "/ns", Created: created}) {
		t.Errorf("connected: %+v", p)
	}
	for _, http2 := range []bool{false, true} {
		pods := []*httpPod{a, b, c}
		cl := client(t, http2)
		for _, p := range pods {
			p.requests.Store(0)
		}
		const n = 600
		for range n {
			if code, _ := get(t, cl, s.at()); code != http.StatusOK {
				t.Fatalf("status %d", code)
			}
		}
		for i, p := range pods { // each 200 ± 11.5 by chance alone
			if got := p.requests.Load(); got < 120 || got > 280 {
				t.Errorf("HTTP/2 %t: pod %d got %d of %d requests", http2, i, got, n)
			}
		}
	}
	if log := r.log.String(); log != "" {
		t.Errorf("log: %s", log)
	}
}

// The first pod refuses connections, the second one closes them as soon as a request comes.
func TestRequestsThatNoPodHasAnsweredAreRepeated(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	closing, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer closing.Close()
	go func() {
		for {
			c, err := closing.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = bufio.NewReader(c).ReadString('\n')
				c.Close()
			}()
		}
	}()
	good := newHTTPPod(t, ok)
	s := shop(t, freeport.Reserve(t), closing.Addr().(*net.TCPAddr).AddrPort(), good.at)
	s.Addr = good.at // where the gate would find a pod that listens
	r.set(s)
	get(t, client(t, false), s.at())
	var clients sync.WaitGroup
	for range 20 {
		cl := client(t, false)
		clients.Go(func() {
			for range 50 {
				a, err := cl.Get(fmt.Sprintf("http://%s/", s.at()))
				if err != nil {
					t.Error(err)
					return
				}
				a.Body.Close()
				if a.StatusCode != http.StatusOK {
					t.Errorf("status %d", a.StatusCode)
					return
				}
			}
		})
	}
	clients.Wait()
}

func TestRequestsGoToTheServiceAddressWhileThereIsNoPod(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	pod := newHTTPPod(t, ok)
	waits := newHTTPPod(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "woken") })
	for _, protocol := range []Protocol{Auto, HTTP1, HTTP2} {
		s := shop(t, pod.at)
		s.Protocol, s.Addr = protocol, waits.at
		r.set(s)
		cl := client(t, protocol == HTTP2)
		answer := func(want string) { // no request fails until Envoy's threads have the change
			t.Helper()
			for begin := time.Now(); ; {
				code, body := get(t, cl, s.at())
				if code == http.StatusOK && body == want {
					return
				}
				if code != http.StatusOK || time.Since(begin) > 2*time.Minute {
					t.Fatalf("status %d: %q, want %q", code, body, want)
				}
			}
		}
		for range 3 { // the connection is kept all the time
			answer("")
			asleep := s
			asleep.Pods = nil
			r.set(asleep)
			answer("woken")
			// A pod that is not known to be gone yet.
			asleep.Pods = []netip.AddrPort{freeport.Reserve(t)}
			r.set(asleep)
			answer("woken")
			r.set(s)
		}
	}
}

func TestWhatIsNotHTTPGetsAPodForEachConnection(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	echo, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.WriteString(c, "hello ") // it speaks first
				_, _ = io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	for _, c := range []struct {
		protocol Protocol
		says     string
	}{{TCP, "anything"}, {Auto, "\x00\x01\x02 not HTTP"}, {Auto, ""}} {
		s := shop(t, echo.Addr().(*net.TCPAddr).AddrPort())
		s.Protocol = c.protocol
		r.set(s)
		var conn net.Conn
		for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			if conn, err = net.Dial("tcp4", s.at().String()); err == nil || time.Since(begin) > time.Minute {
				break
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, c.says)
		want := "hello " + c.says
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
			t.Errorf("%d: %q, %v, want %q", c.protocol, got, err, want)
		}
		conn.Close()
	}
}

func TestRequestsReachPodsAsTheClientHasMadeThem(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	var mu sync.Mutex
	var seen http.Header
	var path string
	pod := newHTTPPod(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen, path = r.Header.Clone(), r.RequestURI
		w.Header().Set("Server", "mine")
		w.Header().Set("Trailer", "Sum")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("Sum", "7")
	})
	s := shop(t, pod.at)
	r.set(s)
	cl := client(t, false)
	get(t, cl, s.at())
	body := bytes.Repeat([]byte("x"), 3<<20)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("http://%s/a//b/../c%%2Fd?q=%%20", s.at()),
		io.MultiReader(bytes.NewReader(body))) // without a length: chunked
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Forwarded-For", "192.0.2.1")
	req.Header.Set("Expect", "100-continue")
	a, err := cl.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	got, err := io.ReadAll(a.Body)
	if err != nil || !bytes.Equal(got, body) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	if a.Header.Get("Server") != "mine" || a.Trailer.Get("Sum") != "7" {
		t.Errorf("answer: %v, trailer %v", a.Header, a.Trailer)
	}
	if path != "/a//b/../c%2Fd?q=%20" {
		t.Errorf("path %s", path)
	}
	// For a client on the loopback device, Envoy writes another address of its own.
	if f := seen.Get("X-Forwarded-For"); f == "" || strings.Contains(f, "192.0.2.1") {
		t.Errorf("X-Forwarded-For: %s", f)
	}
	if f := seen.Get("Forwarded"); f != "for=127.0.0.1;proto=http" {
		t.Errorf("Forwarded: %s", f)
	}
	for name := range seen {
		if strings.HasPrefix(strings.ToLower(name), "x-envoy") || name == "X-Request-Id" {
			t.Errorf("%s: %s", name, seen.Get(name))
		}
	}
}

func TestServerRefusesNothingThatEnvoyWouldKeep(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	pod := newHTTPPod(t, ok)
	all := shop(t, pod.at)
	all.MaxPerPod, all.Warmup = 3, 30*time.Second
	other := shop(t, pod.at)
	other.Name, other.Protocol, other.MaxPerPod = "default/other", HTTP2, 5
	r.set(all, other)
	get(t, client(t, false), all.at())
	get(t, client(t, true), other.at())
	r.set(other) // the first one is removed
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp4", all.at().String())
		if err != nil {
			break
		}
		c.Close()
		if time.Since(begin) > time.Minute {
			t.Fatal("Envoy still listens for a service that is gone")
		}
	}
	get(t, client(t, true), other.at())
	if log := r.log.String(); slices.Contains(strings.Fields(log), "refuses") {
		t.Errorf("log: %s", log)
	}
}
