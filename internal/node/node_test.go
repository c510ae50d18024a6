// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/wire"
)

// world is a network with one node, which is the namespace of the test itself. A client is behind eth0, and each pod
// behind a veth of its own.
type world struct {
	t        *testing.T
	server   *wire.Server
	messages chan wire.Message
	joined   chan wire.Peer
	cancel   context.CancelFunc
	done     chan error
	runDir   string
	key      wire.Key
	addr     string
	changes  []func(*Config) // to the daemon's configuration
}

var (
	vip       = netip.MustParseAddrPort("10.46.100.5:80")
	podRange  = "10.46.128."
	clientNet = "cl"
)

// hello returns the service of these tests.
func hello(flags uint8) wire.Service {
	return wire.Service{
		Addr: vip, Name: "default/hello", IdleSeconds: 2, MaxParked: 100, MaxParkedPerSource: 100, Flags: flags,
	}
}

// sh runs a shell script.
func sh(t *testing.T, format string, args ...any) string {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	out, err := exec.Command("sh", "-ec", line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// namespace creates a named network namespace with a veth to the node. The name is visible in the mount namespace of
// the test only.
func namespace(t *testing.T, name, hostDev, inside string) {
	t.Helper()
	sh(t, `ip netns add %[1]s; ip link add %[2]s type veth peer name eth0 netns %[1]s
		ip link set %[2]s up; ip -n %[1]s link set lo up; ip -n %[1]s link set eth0 up; %[3]s`, name, hostDev, inside)
	t.Cleanup(func() { sh(t, "ip link del %s 2>/dev/null || true; ip netns del %s", hostDev, name) })
}

// newWorld starts a controller and a daemon, whose configuration the changes adapt.
func newWorld(t *testing.T, changes ...func(*Config)) *world {
	sh(t, "ip link set lo up")
	namespace(t, clientNet, "eth0", `ip addr add 10.46.200.1/24 dev eth0
		ip -n cl addr add 10.46.200.10/24 dev eth0; ip -n cl route add 10.46.100.0/24 dev eth0`)
	w := &world{t: t, messages: make(chan wire.Message, 1000), joined: make(chan wire.Peer, 10), runDir: t.TempDir()}
	copy(w.key[:], "a key for this test, 32 bytes...")
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	w.addr = conn.LocalAddr().String()
	w.server, err = wire.NewServer(wire.ServerConfig{Conn: conn, Key: w.key, Log: slog.Default(),
		Joined:  func(p wire.Peer) { w.joined <- p },
		Receive: func(_ wire.Peer, m wire.Message) { w.messages <- m },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.server.Close() })
	if err := w.server.SetServices([]wire.Service{hello(0)}); err != nil {
		t.Fatal(err)
	}
	w.changes = changes
	w.start()
	t.Cleanup(func() {
		w.stop()
		if err := Clean(w.runDir, "", ""); err != nil {
			t.Error(err)
		}
	})
	return w
}

// start starts the daemon and waits until it is ready.
func (w *world) start() {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel, w.done = cancel, make(chan error, 1)
	ready := make(chan struct{})
	c := Config{
		Server: w.addr, Keys: enrolment.KeysOf(w.key, "n1"), Node: "n1", RunDir: w.runDir, Interfaces: []string{"eth0"},
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.46.100.0/24")},
		Log:           slog.Default(), Ready: func() { close(ready) },
	}
	for _, change := range w.changes {
		change(&c)
	}
	go func() { w.done <- Run(ctx, c) }()
	select {
	case <-ready:
	case err := <-w.done:
		w.t.Fatal(err)
	}
}

// stop stops the daemon; the gate keeps running.
func (w *world) stop() {
	w.cancel()
	if err := <-w.done; err != nil {
		w.t.Error(err)
	}
}

// peer returns the ID of the daemon's session.
func (w *world) peer() uint64 {
	peers := w.server.Peers()
	if len(peers) != 1 {
		w.t.Fatalf("%d peers, want 1", len(peers))
	}
	return peers[0].ID
}

// send sends a message to the daemon and waits until it has been handled.
func (w *world) send(m wire.Message) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := w.server.SendWait(ctx, w.peer(), m); err != nil {
		w.t.Fatal(err)
	}
}

// await returns the next message of a type.
func await[T wire.Message](w *world) T {
	w.t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		select {
		case m := <-w.messages:
			if got, ok := m.(T); ok {
				return got
			}
		case <-deadline:
			var zero T
			w.t.Fatalf("no %T", zero)
		}
	}
}

// in runs f on a thread of a named network namespace.
func in(t *testing.T, name string, f func() error) {
	t.Helper()
	ns, err := netns.GetFromName(name)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := inNetns(ns, f); err != nil {
		t.Fatal(err)
	}
}

// pod creates the network of pod n.
func (w *world) pod(n int) wire.Backend {
	name, dev := fmt.Sprintf("pod%d", n), fmt.Sprintf("wgpod%d", n)
	addr := fmt.Sprintf("%s%d", podRange, n)
	namespace(w.t, name, dev, fmt.Sprintf(`ip -n %[1]s addr add %[2]s/32 dev eth0
		ip -n %[1]s route add 169.254.46.1 dev eth0; ip -n %[1]s route add default via 169.254.46.1 dev eth0
		mac=$(ip -j link show %[3]s | grep -o '"address":"[^"]*' | cut -d'"' -f4)
		ip -n %[1]s neigh add 169.254.46.1 lladdr $mac dev eth0`, name, addr, dev))
	return wire.Backend{
		PodID: uint64(n), State: wire.PodStarting, Addr: netip.MustParseAddrPort(addr + ":8080"), Node: "n1",
		Netns: "/run/netns/" + name,
	}
}

// listen starts an HTTP server in pod n, which answers with the pod's name and the client's address.
func (w *world) listen(n int) *http.Server {
	name := fmt.Sprintf("pod%d", n)
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(rw, "%s %s", name, host)
	})}
	in(w.t, name, func() error {
		l, err := net.Listen("tcp4", ":8080")
		if err == nil {
			go srv.Serve(l)
		}
		return err
	})
	w.t.Cleanup(func() { srv.Close() })
	return srv
}

// get sends a request to the service from a namespace, or from the node itself if ns is empty.
func get(ns string) (string, error) {
	dial := func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		d := func() error { c, err = net.DialTimeout("tcp4", addr, 30*time.Second); return err }
		if ns == "" {
			return c, d()
		}
		h, err := netns.GetFromName(ns)
		if err != nil {
			return nil, err
		}
		defer h.Close()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return c, inNetns(h, d)
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: 40 * time.Second}
	resp, err := client.Get("http://" + vip.String() + "/")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func TestServiceWakesSleepsAndSurvivesARestartOfTheDaemon(t *testing.T) {
	w := newWorld(t)
	answers := make(chan string, 10)
	ask := func(ns string) {
		go func() {
			a, err := get(ns)
			if err != nil {
				a = err.Error()
			}
			answers <- a
		}()
	}
	ask(clientNet)
	wake := await[*wire.Wake](w)
	if wake.Service != vip || wake.SYNSeen == 0 || wake.Noticed < wake.SYNSeen || wake.Parked != 1 {
		t.Fatalf("wake %+v", wake)
	}
	pod := w.pod(1)
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	w.listen(1)
	l := await[*wire.Listening](w)
	if l.PodID != 1 || l.At < wake.SYNSeen {
		t.Fatalf("listening %+v", l)
	}
	if a := <-answers; a != "pod1 10.46.200.10" {
		t.Errorf("cold, from another host: %q", a)
	}
	for i, ns := range []string{clientNet, ""} {
		ask(ns)
		want := []string{"pod1 10.46.200.10", "pod1 10.46.200.1"}[i]
		if a := <-answers; a != want {
			t.Errorf("warm, from %q: %q, want %q", ns, a, want)
		}
	}
	pod2 := w.pod(2)
	idle := await[*wire.Idle](w)
	if idle.Service != vip || idle.LastPacket == 0 {
		t.Fatalf("idle %+v", idle)
	}
	pod.State = wire.PodDraining
	w.send(&wire.Backends{Service: vip, Generation: 2, Pods: []wire.Backend{pod}})
	if q := await[*wire.Quiet](w); q.Generation != 2 || q.OpenFlows != 0 || q.LastPacket != idle.LastPacket {
		t.Fatalf("quiet %+v, after %+v", q, idle)
	}
	// While the pod drains, a SYN is parked, and goes to the next pod.
	ask("")
	await[*wire.Wake](w)
	w.listen(2)
	w.send(&wire.Backends{Service: vip, Generation: 3, Pods: []wire.Backend{pod2}})
	if a := <-answers; a != "pod2 10.46.200.1" {
		t.Errorf("cold, from the node: %q", a)
	}
	// Traffic continues without a daemon, and the next daemon adopts the pod.
	w.stop()
	ask(clientNet)
	if a := <-answers; a != "pod2 10.46.200.10" {
		t.Errorf("without a daemon: %q", a)
	}
	w.start()
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod2}})
	if l := await[*wire.Listening](w); l.PodID != 2 {
		t.Errorf("listening %+v", l)
	}
	ask(clientNet)
	if a := <-answers; a != "pod2 10.46.200.10" {
		t.Errorf("after a restart: %q", a)
	}
}

func TestPodsUnknownToANewLeaderServeDuringTheGracePeriod(t *testing.T) {
	w := newWorld(t)
	pods := []wire.Backend{w.pod(1), w.pod(2)}
	w.listen(1)
	w.listen(2)
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: pods})
	await[*wire.Listening](w)
	await[*wire.Listening](w)
	w.stop()
	w.start()
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: pods[:1]})
	answers := func() (n int, by map[string]bool) {
		by = map[string]bool{}
		for range 10 {
			a, err := get(clientNet)
			if err != nil { // the pod was just being removed
				a = err.Error()
			}
			by[strings.Fields(a)[0]] = true
		}
		return len(by), by
	}
	if n, by := answers(); n != 2 {
		t.Errorf("during the grace period, %v answer", by)
	}
	for end := time.Now().Add(60 * time.Second); ; {
		n, by := answers()
		if n == 1 && by["pod1"] {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after the grace period, %v answer", by)
		}
	}
}

func TestWakeIsRepeatedWhenMoreClientsWait(t *testing.T) {
	w := newWorld(t)
	var group sync.WaitGroup
	first := wire.Wake{}
	for i := range uint32(3) {
		group.Go(func() {
			if _, err := get(clientNet); err == nil {
				t.Error("a service without a pod answers")
			}
		})
		wake := await[*wire.Wake](w)
		if i == 0 {
			first = *wake
		}
		if wake.Parked != i+1 || wake.Seq != first.Seq || wake.SYNSeen != first.SYNSeen {
			t.Errorf("with %d clients: %+v, the first %+v", i+1, wake, first)
		}
	}
	w.send(&wire.Refuse{Service: vip, Reason: "no such image"})
	group.Wait()
}

func TestRefusedClientsGetAReset(t *testing.T) {
	w := newWorld(t)
	var group sync.WaitGroup
	for _, ns := range []string{clientNet, ""} {
		group.Go(func() {
			_, err := get(ns)
			if err == nil || !strings.Contains(err.Error(), "connection refused") {
				t.Errorf("from %q: %v, want connection refused", ns, err)
			}
		})
		await[*wire.Wake](w)
		w.send(&wire.Refuse{Service: vip, Reason: "no such image"})
	}
	group.Wait()
}

func TestProbeFindsAListener(t *testing.T) {
	w := newWorld(t)
	pod := w.pod(7)
	var p *prober
	in(t, "pod7", func() (err error) { p, err = newProber(pod.Addr); return err })
	defer p.close()
	if p.answers() {
		t.Error("the probe finds a listener where there is none")
	}
	w.listen(7)
	deadline := time.Now().Add(60 * time.Second)
	for !p.answers() {
		if time.Now().After(deadline) {
			t.Fatal("the probe does not find the listener")
		}
	}
}

func init() { slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil))) }
