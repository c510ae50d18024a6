// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"
)

// patience limits the wait for what must happen eventually. It does not measure speed.
const patience = 60 * time.Second

var testKey = Key{0: 1, 31: 2}

// eventually waits until cond returns true.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after %v: %s", patience, what)
		}
	}
}

// noLeak fails a test that leaks goroutines. It must be called first, so that its check runs last.
func noLeak(t testing.TB) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for end := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				var buf [1 << 16]byte
				stack := buf[:runtime.Stack(buf[:], true)]
				t.Fatalf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), stack)
			}
		}
	})
}

func listen(t testing.TB, addr string) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// logWriter writes log lines to a test's log until the test has ended.
type logWriter struct {
	mu sync.Mutex
	t  testing.TB
}

func (w *logWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Logf("%s", bytes.TrimSpace(b))
	}
	return len(b), nil
}

func testLog(t testing.TB, who string) *slog.Logger {
	w := &logWriter{t: t}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.t = nil
	})
	return slog.New(slog.NewTextHandler(w, nil)).With("at", who)
}

// controller is a server that records what happens.
type controller struct {
	*Server
	addr string

	mu     sync.Mutex
	joined []Peer
	left   []Peer
	order  []string // "+node", "-node"
	got    []Message
}

func startController(t testing.TB, addr string, change func(*ServerConfig)) *controller {
	t.Helper()
	c := &controller{}
	conn := listen(t, addr)
	c.addr = conn.LocalAddr().String()
	cfg := ServerConfig{
		Conn: conn, Key: testKey, Log: testLog(t, "server"),
		Joined: func(p Peer) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.joined = append(c.joined, p)
			c.order = append(c.order, "+"+p.Node)
		},
		Left: func(p Peer) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.left = append(c.left, p)
			c.order = append(c.order, "-"+p.Node)
		},
		Receive: func(_ Peer, m Message) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.got = append(c.got, m)
		},
	}
	if change != nil {
		change(&cfg)
	}
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.Server = s
	t.Cleanup(func() { _ = s.Close() })
	return c
}

func (c *controller) joins() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.joined)
}

func (c *controller) leaves() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.left)
}

func (c *controller) received() []Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Message(nil), c.got...)
}

// peer waits for the daemon's session.
func (c *controller) peer(t testing.TB, node string) Peer {
	t.Helper()
	var out Peer
	eventually(t, "daemon "+node+" connected", func() bool {
		for _, p := range c.Peers() {
			if p.Node == node {
				out = p
				return true
			}
		}
		return false
	})
	return out
}

// daemon is a client that records what happens.
type daemon struct {
	*Client

	mu       sync.Mutex
	ups      int
	downs    int
	steps    int
	fulls    int
	services map[netip.AddrPort]Service
	got      []Message
}

func startDaemon(t testing.TB, server, node string, change func(*ClientConfig)) *daemon {
	t.Helper()
	d := &daemon{services: map[netip.AddrPort]Service{}}
	cfg := ClientConfig{
		Server: server, Key: testKey.ForNode(node), Node: node, Log: testLog(t, node),
		Connected: func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.ups++
		},
		Disconnected: func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.downs++
		},
		Services: func(full bool, upserts []Service, removals []netip.AddrPort) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.steps++
			if full {
				d.fulls++
				clear(d.services)
			}
			for _, a := range removals {
				delete(d.services, a)
			}
			for _, s := range upserts {
				d.services[s.Addr] = s
			}
		},
		Receive: func(m Message) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.got = append(d.got, m)
		},
	}
	if change != nil {
		change(&cfg)
	}
	c, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d.Client = c
	t.Cleanup(func() { _ = c.Close() })
	return d
}

func (d *daemon) received() []Message {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Message(nil), d.got...)
}

func (d *daemon) state() (ups, downs, steps, fulls, services int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ups, d.downs, d.steps, d.fulls, len(d.services)
}

func (d *daemon) connections() int {
	ups, _, _, _, _ := d.state()
	return ups
}

// relay is a bad network between clients and a server: it loses, duplicates and reorders datagrams, or all of them are
// lost. It captures the datagrams to the server.
type relay struct {
	t      testing.TB
	front  *net.UDPConn
	server *net.UDPAddr
	group  sync.WaitGroup

	mu       sync.Mutex
	rnd      *rand.Rand
	loss     float64
	double   float64
	late     float64 // fraction that is delayed by up to 3 ms
	cut      bool
	lines    map[netip.AddrPort]*net.UDPConn
	captured [][]byte
}

func startRelay(t testing.TB, server string) *relay {
	t.Helper()
	addr, err := net.ResolveUDPAddr("udp", server)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{
		t: t, front: listen(t, "127.0.0.1:0"), server: addr,
		rnd: rand.New(rand.NewPCG(3, 4)), lines: map[netip.AddrPort]*net.UDPConn{},
	}
	r.group.Go(r.fromClients)
	t.Cleanup(func() {
		r.front.Close()
		r.mu.Lock()
		for _, l := range r.lines {
			l.Close()
		}
		r.lines = nil
		r.mu.Unlock()
		r.group.Wait()
	})
	return r
}

func (r *relay) addr() string { return r.front.LocalAddr().String() }

func (r *relay) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *relay) fromClients() {
	buf := make([]byte, 2048)
	for {
		n, from, err := r.front.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		d := bytes.Clone(buf[:n])
		r.mu.Lock()
		line := r.lines[from]
		if line == nil && r.lines != nil {
			if line, err = net.DialUDP("udp", nil, r.server); err != nil {
				r.t.Error(err)
			}
			r.lines[from] = line
			r.group.Go(func() { r.fromServer(line, from) })
		}
		r.captured = append(r.captured, d)
		r.mu.Unlock()
		if line != nil {
			r.pass(d, func(d []byte) { _, _ = line.Write(d) })
		}
	}
}

func (r *relay) fromServer(line *net.UDPConn, client netip.AddrPort) {
	buf := make([]byte, 2048)
	for {
		n, err := line.Read(buf)
		if n == 0 && err != nil {
			if r.closed() {
				return
			}
			continue // the server is not running
		}
		r.pass(bytes.Clone(buf[:n]), func(d []byte) { _, _ = r.front.WriteToUDPAddrPort(d, client) })
	}
}

func (r *relay) closed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lines == nil
}

func (r *relay) pass(d []byte, write func([]byte)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	copies := 1
	if r.cut || r.rnd.Float64() < r.loss {
		copies = 0
	} else if r.rnd.Float64() < r.double {
		copies = 2
	}
	for range copies {
		if r.rnd.Float64() < r.late {
			time.AfterFunc(time.Duration(r.rnd.IntN(3000))*time.Microsecond, func() { write(d) })
		} else {
			write(d)
		}
	}
}

// inject sends a datagram to the server from the address of every client.
func (r *relay) inject(d []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		_, _ = l.Write(d)
	}
}
