// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/node/cri/critest"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/ownns"
)

// asDaemon is the environment variable with the daemonConfig for which this test binary runs as a daemon.
const asDaemon = "WANGELL_TEST_DAEMON"

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		fmt.Fprintln(os.Stderr, serveAsPod())
		os.Exit(1)
	}
	text := os.Getenv(asDaemon)
	if text == "" {
		ownns.Main(m.Run)
		return
	}
	if err := daemonMain(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// daemonConfig is the part of Config that a test passes to a daemon's process.
type daemonConfig struct {
	Server, Node, NodeAddr, RunDir, CRI, PodLogs string
	Key                                          wire.Key
	NoARP                                        bool
	Clean                                        bool // run Clean, not Run
}

func daemonMain(text string) error {
	var c daemonConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	if c.Clean {
		return Clean(c.RunDir, "", "")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the test does, even if it is killed
		os.Exit(1)
	}()
	return Run(ctx, Config{
		Server: c.Server, Keys: enrolment.KeysOf(c.Key, c.Node), Node: c.Node, NodeAddr: netip.MustParseAddr(c.NodeAddr),
		EncapPort: 7947,
		CRI:       c.CRI, PodLogs: c.PodLogs, RunDir: c.RunDir, NoARP: c.NoARP,
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.46.100.0/24")}, Interfaces: []string{"eth0"},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)).With("at", c.Node),
	})
}

// testNode is a node: a network namespace with the process of a daemon.
type testNode struct {
	config daemonConfig
	cmd    *exec.Cmd
	cri    *critest.Runtime
}

// lan is a network with two nodes and a client, each a namespace. The test itself is the controller's machine and has
// the bridge.
type lan struct {
	*world
	nodes map[string]*testNode
	mu    sync.Mutex
	left  []wire.Peer    // in order
	from  []string       // nodes of the messages in all
	all   []wire.Message // in order
}

const client = "client"

// machine creates a namespace on the LAN.
func machine(t *testing.T, name, addr string) {
	namespace(t, name, "lan-"+name, fmt.Sprintf(`ip link set lan-%[1]s master lan0
		ip -n %[1]s addr add %[2]s/24 dev eth0; ip -n %[1]s route add default via 192.0.2.1
		ip netns exec %[1]s sysctl -qw net.ipv4.ip_forward=1`, name, addr))
}

func newLAN(t *testing.T) *lan {
	// With an address of its own, the bridge does not take that of a machine that comes later. Those that came before
	// would not reach the controller until they ask for its address again.
	sh(t, `ip link set lo up; ip link add lan0 address 02:00:00:00:00:01 type bridge
		ip addr add 192.0.2.1/24 dev lan0; ip link set lan0 up`)
	t.Cleanup(func() { sh(t, "ip link del lan0") })
	machine(t, client, "192.0.2.10")
	// The service addresses are on the LAN, so the client sends ARP requests for them.
	sh(t, "ip -n client route add 10.46.100.0/24 dev eth0")
	l := &lan{
		world: &world{t: t, messages: make(chan wire.Message, 1000), joined: make(chan wire.Peer, 10)},
		nodes: map[string]*testNode{},
	}
	copy(l.key[:], "a key for this test, 32 bytes...")
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1)})
	if err != nil {
		t.Fatal(err)
	}
	l.addr = conn.LocalAddr().String()
	l.server, err = wire.NewServer(wire.ServerConfig{Conn: conn, Key: l.key, Log: slog.Default(),
		Joined: func(p wire.Peer) { l.joined <- p },
		Left: func(p wire.Peer) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.left = append(l.left, p)
		},
		Receive: func(p wire.Peer, m wire.Message) {
			l.mu.Lock()
			l.from, l.all = append(l.from, p.Node), append(l.all, m)
			l.mu.Unlock()
			l.messages <- m
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.server.Close() })
	if err := l.server.SetServices([]wire.Service{hello(wire.FlagAnnounce | wire.FlagUsage)}); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"n1", "n2"} {
		addr := fmt.Sprintf("192.0.2.%d", 11+i)
		machine(t, name, addr)
		n := &testNode{cri: critest.New(t), config: daemonConfig{
			Server: l.addr, Node: name, NodeAddr: addr, RunDir: t.TempDir(), Key: l.key,
		}}
		n.config.CRI, n.config.PodLogs = n.cri.Path, n.config.RunDir
		n.cri.Start()
		l.nodes[name] = n
		l.startNode(name)
		t.Cleanup(func() {
			l.endNode(name, syscall.SIGTERM)
			n.config.Clean = true
			if err := l.process(n).Run(); err != nil {
				t.Error(err)
			}
		})
	}
	return l
}

// process returns the command that runs the daemon of a node.
func (l *lan) process(n *testNode) *exec.Cmd {
	text, err := json.Marshal(n.config)
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.Command("nsenter", "--net=/run/netns/"+n.config.Node, "/proc/self/exe")
	cmd.Path, _ = exec.LookPath("nsenter")
	cmd.Args[2] = must(os.Executable())
	cmd.Env = append(os.Environ(), asDaemon+"="+string(text))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd
}

func must(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}

// startNode starts a node's daemon and waits until it is connected.
func (l *lan) startNode(name string) {
	l.t.Helper()
	n := l.nodes[name]
	n.cmd = l.process(n)
	if _, err := n.cmd.StdinPipe(); err != nil {
		l.t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	for deadline := time.After(60 * time.Second); ; {
		select {
		case p := <-l.joined:
			if p.Node == name {
				return
			}
		case <-deadline:
			l.t.Fatalf("the daemon of %s does not connect", name)
		}
	}
}

func (l *lan) endNode(name string, s syscall.Signal) {
	n := l.nodes[name]
	if n.cmd == nil {
		return
	}
	if err := n.cmd.Process.Signal(s); err != nil {
		l.t.Errorf("the daemon of %s has ended before: %v", name, err)
	}
	if err := n.cmd.Wait(); err != nil && s != syscall.SIGKILL {
		l.t.Errorf("the daemon of %s: %v", name, err)
	}
	n.cmd = nil
}

// sendAll sends a message to all daemons and waits until all have handled it.
func (l *lan) sendAll(m wire.Message) {
	l.t.Helper()
	done := make(chan []wire.Peer, 1)
	if err := l.server.SendAll(m, func(missed []wire.Peer) { done <- missed }); err != nil {
		l.t.Fatal(err)
	}
	if missed := <-done; len(missed) > 0 {
		l.t.Fatalf("%v was not handled by %v", m.Type(), missed)
	}
}

// sendNodes sends a list of nodes to all daemons.
func (l *lan) sendNodes(generation uint64, names ...string) {
	l.t.Helper()
	l.sendNodesTagging(generation, false, names...)
}

// sendNodesTagging is sendNodes with what is known of tags, which is the same of all.
func (l *lan) sendNodesTagging(generation uint64, tags bool, names ...string) {
	l.t.Helper()
	var infos []wire.NodeInfo
	for _, n := range names {
		infos = append(infos, wire.NodeInfo{Name: n, Addr: netip.MustParseAddr(l.nodes[n].config.NodeAddr), Tags: tags})
	}
	for _, m := range wire.NewNodes(generation, infos, tags) {
		l.sendAll(m)
	}
}

// podOn creates the network of pod n on a node.
func (l *lan) podOn(node string, n int) wire.Backend {
	name, addr := fmt.Sprintf("pod%d", n), fmt.Sprintf("10.244.%s.%d", strings.TrimPrefix(node, "n"), n)
	sh(l.t, `ip netns add %[1]s; ip -n %[3]s link add veth%[1]s type veth peer name eth0 netns %[1]s
		ip -n %[3]s link set veth%[1]s up; ip -n %[1]s link set lo up; ip -n %[1]s link set eth0 up
		ip -n %[1]s addr add %[2]s/32 dev eth0; ip -n %[1]s route add 169.254.46.1 dev eth0
		ip -n %[1]s route add default via 169.254.46.1 dev eth0
		mac=$(ip -n %[3]s -j link show veth%[1]s | grep -o '"address":"[^"]*' | cut -d'"' -f4)
		ip -n %[1]s neigh add 169.254.46.1 lladdr $mac dev eth0`, name, addr, node)
	l.t.Cleanup(func() { sh(l.t, "ip netns del %s", name) })
	return wire.Backend{
		PodID: uint64(n), State: wire.PodStarting, Addr: netip.MustParseAddrPort(addr + ":8080"), Node: node,
		NodeAddr: netip.MustParseAddr(l.nodes[node].config.NodeAddr), Netns: "/run/netns/" + name,
	}
}

// neighbour returns the hardware address that the client has for the VIP; empty if it has none.
func (l *lan) neighbour() string {
	for _, f := range strings.Split(sh(l.t, "ip -n client neigh show %s", vip.Addr()), " ") {
		if strings.Count(f, ":") == 5 {
			return f
		}
	}
	return ""
}

// hardware returns the hardware address of a node.
func (l *lan) hardware(node string) string {
	return strings.TrimSpace(sh(l.t, "ip netns exec %s cat /sys/class/net/eth0/address", node))
}

// awaitFrom waits for a message from a node for which fits returns true, and returns it.
func awaitFrom[T wire.Message](l *lan, node string, fits func(T) bool) T {
	l.t.Helper()
	next := 0
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		l.mu.Lock()
		for ; next < len(l.all); next++ {
			if m, ok := l.all[next].(T); ok && l.from[next] == node && fits(m) {
				l.mu.Unlock()
				return m
			}
		}
		l.mu.Unlock()
	}
	var zero T
	l.t.Fatalf("no such %T from %s", zero, node)
	return zero
}

// forget drops the messages received so far.
func (l *lan) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.from, l.all = nil, nil
}

// ask sends a request from the client. The channel gets the answer or the error.
func (l *lan) ask() chan string {
	answer := make(chan string, 1)
	go func() {
		a, err := get(client)
		if err != nil {
			a = err.Error()
		}
		answer <- a
	}()
	return answer
}

func TestServiceOnTwoNodesFromColdStartToTheDeathOfANode(t *testing.T) {
	l := newLAN(t)
	for name, n := range l.nodes {
		awaitFrom(l, name, func(m *wire.Node) bool { return m.Addr.String() == n.config.NodeAddr })
	}
	l.sendNodes(1, "n1", "n2")
	edge := owner(vip.Addr(), []scored{score("n1"), score("n2")}).name
	home := map[string]string{"n1": "n2", "n2": "n1"}[edge]

	// Cold: the edge node asks for a wake, the home node reports that the pod listens, the edge node releases the SYN.
	answer := l.ask()
	awaitFrom(l, edge, func(m *wire.Wake) bool { return m.Service == vip && m.Parked == 1 })
	if got := l.neighbour(); got != l.hardware(edge) {
		t.Errorf("the VIP is at %q, want %q of its owner %s", got, l.hardware(edge), edge)
	}
	pod := l.podOn(home, 1)
	runtime := l.nodes[home].cri
	runtime.Pod("p", "hello", pod.Netns, pod.Addr.Addr().String())
	report := awaitFrom(l, home, func(m *wire.PodReport) bool { return m.Event == 1 })
	if report.Service != "default/hello" || report.UID != "uid-p" || report.Addr != pod.Addr.Addr() ||
		report.Netns != pod.Netns || report.SpecHash != "abc" {
		t.Errorf("report %+v", report)
	}
	runtime.Container("p", "c", "main")
	runtime.Become("c", critest.Running, 0)
	l.sendAll(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	srv := l.listen(1)
	awaitFrom(l, home, func(m *wire.Listening) bool { return m.PodID == 1 })
	pod.State = wire.PodServing
	l.sendAll(&wire.Backends{Service: vip, Generation: 2, Pods: []wire.Backend{pod}})
	if a := <-answer; a != "pod1 192.0.2.10" {
		t.Errorf("cold: %q", a)
	}
	awaitFrom(l, edge, func(m *wire.Trace) bool { return m.ReleasedN == 1 })
	for range 3 {
		if a := <-l.ask(); a != "pod1 192.0.2.10" {
			t.Errorf("warm: %q", a)
		}
	}

	// From now on both tag what they send to each other.
	l.sendAll(&wire.TagKeys{First: 5, Keys: [2][wire.TagKeySize]byte{{1}, {2}}})
	for name := range l.nodes {
		awaitFrom(l, name, func(m *wire.TagReady) bool { return m.First == 5 })
	}
	l.sendNodesTagging(2, true, "n1", "n2")
	for range 3 {
		if a := <-l.ask(); a != "pod1 192.0.2.10" {
			t.Errorf("with tags: %q", a)
		}
	}

	// The home node reports the pod's usage.
	runtime.Use("c", 3*time.Second, 1<<20)
	used := awaitFrom(l, home, func(m *wire.Usage) bool { return true })
	if len(used.Pods) != 1 || used.Pods[0].At == 0 {
		t.Fatalf("usage %+v", used)
	}
	used.Pods[0].At = 0
	if used.Pods[0] != (wire.PodUsage{Service: vip, PodID: 1, CPU: 3e9, Memory: 1 << 20}) {
		t.Errorf("usage %+v", used)
	}

	// Only the home node counts flows and reports when the service is idle.
	idle := awaitFrom(l, home, func(m *wire.Idle) bool { return true })
	if idle.Service != vip || idle.LastPacket == 0 {
		t.Errorf("idle %+v", idle)
	}
	l.mu.Lock()
	for i, m := range l.all {
		switch m := m.(type) {
		case *wire.Idle, *wire.Listening, *wire.Quiet:
			if l.from[i] != home {
				t.Errorf("%s sends %+v", l.from[i], m)
			}
		case *wire.Stats:
			if l.from[i] != home && m.Pods[0] != (wire.PodStats{Service: vip, PodID: 1}) {
				t.Errorf("%s sends counters %+v", l.from[i], m)
			}
		}
	}
	l.mu.Unlock()

	// The process ends and is restarted in place. Meanwhile the pod gets no flow.
	l.forget()
	srv.Close()
	log := filepath.Join(l.nodes[home].config.PodLogs, "0.log")
	if err := os.WriteFile(log, []byte("2026-05-01T10:00:00.1Z stderr F no configuration\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runtime.Log("c", log)
	runtime.Become("c", critest.Exited, 1)
	awaitFrom(l, home, func(m *wire.PodReport) bool { return m.Event == 4 && m.Code == 1 && m.Container == "main" })
	awaitFrom(l, home, func(m *wire.PodLog) bool {
		return m.UID == "uid-p" && m.Container == "main" && m.Text == "no configuration\n"
	})
	pod.State = wire.PodStarting
	l.sendAll(&wire.Backends{Service: vip, Generation: 3, Pods: []wire.Backend{pod}})
	answer = l.ask()
	awaitFrom(l, edge, func(m *wire.Wake) bool { return m.Service == vip })
	l.listen(1)
	awaitFrom(l, home, func(m *wire.Listening) bool { return m.PodID == 1 })
	pod.State = wire.PodServing
	l.sendAll(&wire.Backends{Service: vip, Generation: 4, Pods: []wire.Backend{pod}})
	if a := <-answer; a != "pod1 192.0.2.10" {
		t.Errorf("after the restart of the process: %q", a)
	}

	// Both daemons are restarted during requests: nothing is lost, and everything is reported again.
	l.forget()
	for _, name := range []string{edge, home} {
		l.endNode(name, syscall.SIGTERM)
		if a := <-l.ask(); a != "pod1 192.0.2.10" {
			t.Errorf("without the daemon of %s: %q", name, a)
		}
		l.startNode(name)
		if a := <-l.ask(); a != "pod1 192.0.2.10" {
			t.Errorf("before the daemon of %s gets the pods: %q", name, a)
		}
		// It reports the adopted pod.
		awaitFrom(l, name, func(m *wire.Stats) bool { return m.Pods[0] == wire.PodStats{Service: vip, PodID: 1} })
		l.sendAll(&wire.Backends{Service: vip, Generation: 5, Pods: []wire.Backend{pod}})
	}
	awaitFrom(l, home, func(m *wire.PodReport) bool { return m.Event == 1 && m.UID == "uid-p" })
	l.mu.Lock()
	if len(l.left) != 2 || !l.left[0].Restarting || !l.left[1].Restarting {
		t.Errorf("left: %+v, want two that are restarting", l.left)
	}
	l.mu.Unlock()

	// The edge node dies. Its VIP moves to the home node of the pod, which announces it to the client.
	begin := time.Now()
	sh(t, "ip link set lan-%s down", edge)
	l.endNode(edge, syscall.SIGKILL)
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		n := len(l.left)
		l.mu.Unlock()
		if n == 3 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the controller does not notice that the node died")
		}
	}
	t.Logf("the controller noticed after %v", time.Since(begin))
	if l.left[2].Restarting {
		t.Error("the death of a node looks like a restart")
	}
	l.sendNodes(2, home)
	for end := time.Now().Add(60 * time.Second); l.neighbour() != l.hardware(home); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the client still has %q for the VIP", l.neighbour())
		}
	}
	if a := <-l.ask(); a != "pod1 192.0.2.10" {
		t.Errorf("after the node's death: %q", a)
	}
	t.Logf("answered after %v", time.Since(begin))
	sh(t, "ip link set lan-%s up", edge)

	// Draining: the home node reports that the pod is quiet.
	l.forget()
	pod.State = wire.PodDraining
	l.sendAll(&wire.Backends{Service: vip, Generation: 6, Pods: []wire.Backend{pod}})
	awaitFrom(l, home, func(m *wire.Quiet) bool { return m.Generation == 6 && m.PodID == 1 })
	l.sendAll(&wire.Backends{Service: vip, Generation: 7})
}

func TestSecondDaemonOfAFolderWaitsAndCleanFails(t *testing.T) {
	dir := t.TempDir()
	unlock, err := tryLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := Clean(dir, "", ""); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("Clean while a daemon runs: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		second, err := lock(t.Context(), dir, slog.Default())
		if err == nil {
			err = second()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("the second daemon does not wait: %v", err)
	case <-time.After(3 * lockAgain):
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	unlock, err = tryLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := lock(ctx, dir, slog.Default()); err == nil {
		t.Error("lock succeeds although another daemon holds the lock")
	}
	if err := Clean(filepath.Join(dir, "none"), "", ""); err != nil {
		t.Errorf("Clean of a folder that does not exist: %v", err)
	}
}

func TestReadyzFailsBeforeTheFirstTable(t *testing.T) {
	sh(t, "ip link set lo up")
	d := newDaemon(Config{Log: slog.Default()}, nil)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	d.cfg.MetricsAddress = l.Addr().String()
	stop, err := d.cfg.serveHTTP(d.handler())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	status := func(path string) int {
		r, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r.StatusCode
	}
	if got := []int{status("/healthz"), status("/readyz")}; got[0] != 200 || got[1] != 503 {
		t.Errorf("before the first table: %v", got)
	}
	close(d.tabled)
	if got := status("/readyz"); got != 200 {
		t.Errorf("with a table: %d", got)
	}
	for _, path := range []string{"/metrics", "/healthz", "/readyz"} { // of a page that has made this address its own
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = "evil.example:9465"
		w := httptest.NewRecorder()
		if d.handler().ServeHTTP(w, r); w.Code != http.StatusMisdirectedRequest {
			t.Errorf("%s for another host: %d", path, w.Code)
		}
	}
}
