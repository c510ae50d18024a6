// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// fakeCluster is a runtime whose pods are on nodes, and come and go.
type fakeCluster struct {
	*fakeRuntime
	appeared chan runtime.Pod
	leaving  chan string

	mu    sync.Mutex
	next  []string // nodes of the next pods; without any, n1
	saw   []runtime.PodReport
	told  []string // the last SetNodes
	roll  bool
	asked int // how often Rolling was called
}

func (r *fakeCluster) Rolling(runtime.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	return r.roll
}

func (r *fakeCluster) Appeared() <-chan runtime.Pod { return r.appeared }
func (r *fakeCluster) Leaving() <-chan string       { return r.leaving }
func (r *fakeCluster) ReportPod(s runtime.PodReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.saw = append(r.saw, s)
}

func (r *fakeCluster) SetNodes(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = names
}

// place puts a pod on a node.
func (r *fakeCluster) place(s *v1alpha1.WangellService) runtime.Pod {
	p := r.add(s)
	r.mu.Lock()
	p.Node = "n1"
	if len(r.next) > 0 {
		p.Node, r.next = r.next[0], r.next[1:]
	}
	r.mu.Unlock()
	p.NodeAddr = nodeAddr(p.Node)
	r.fakeRuntime.mu.Lock()
	r.pods[p.ID] = p
	r.fakeRuntime.mu.Unlock()
	return p
}

func nodeAddr(name string) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 0, 2, name[len(name)-1] - '0'})
}

func (r *fakeCluster) Start(ctx context.Context, s *v1alpha1.WangellService, hooks runtime.StartHooks) (runtime.Pod, error) {
	if r.onStart != nil {
		if err := r.onStart(ctx, s); err != nil {
			return runtime.Pod{}, err
		}
	}
	p := r.place(s)
	hooks.Network(p)
	return p, nil
}

// clusterWorld is a controller of a cluster with daemons on nodes n1 and n2.
type clusterWorld struct {
	*world
	cluster *fakeCluster
	d2      *fakeDaemon
}

func newCluster(t *testing.T, before func(*fakeCluster)) *clusterWorld {
	w := &clusterWorld{world: &world{t: t, rt: newFakeRuntime()}}
	w.cluster = &fakeCluster{fakeRuntime: w.rt, appeared: make(chan runtime.Pod, 16), leaving: make(chan string, 16)}
	if before != nil {
		before(w.cluster)
	}
	w.boot(func(c *Config) { c.Runtime, c.Node = w.cluster, "" })
	w.d, w.d2 = w.daemonOn("n1", &wire.Node{Addr: nodeAddr("n1")}), w.daemonOn("n2", &wire.Node{Addr: nodeAddr("n2")})
	t.Cleanup(func() {
		w.d.client.Close()
		w.d2.client.Close()
		w.c.Detach()
	})
	w.until("both daemons are there", func() (both bool) {
		w.c.loop.call(func() { both = len(w.c.engine.daemons.peers) == 2 })
		return both
	})
	return w
}

// stick has a daemon handle nothing before the function that it returns is called.
func (d *fakeDaemon) stick(t *testing.T) func() {
	stuck := make(chan struct{})
	d.set(func(d *fakeDaemon) { d.stuck = stuck })
	release := sync.OnceFunc(func() {
		d.set(func(d *fakeDaemon) { d.stuck = nil })
		close(stuck)
	})
	t.Cleanup(release)
	return release
}

func (w *clusterWorld) put(s *v1alpha1.WangellService, n byte) netip.AddrPort {
	w.t.Helper()
	a := netip.AddrFrom4([4]byte{203, 0, 113, n})
	if err := w.c.Put(Service{Spec: s, Addr: a, Announce: true}); err != nil {
		w.t.Fatal(err)
	}
	return netip.AddrPortFrom(a, uint16(s.Spec.Port))
}

func (w *clusterWorld) synced() {
	w.t.Helper()
	if err := w.c.Synced(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *clusterWorld) untilPods(a netip.AddrPort, want string) {
	w.t.Helper()
	for _, d := range []*fakeDaemon{w.d, w.d2} {
		w.until(fmt.Sprintf("%s has%s", d.node, want), func() bool { return d.pods(a) == want })
	}
}

func (w *clusterWorld) scale(name string, n int) {
	w.t.Helper()
	if err := w.c.Scale(runtime.Key("default/"+name), n, "tested"); err != nil {
		w.t.Fatal(err)
	}
}

func upTo(n int32) func(*v1alpha1.WangellServiceSpec) {
	return func(s *v1alpha1.WangellServiceSpec) { s.MaxReplicas = n }
}

func TestOneByOne(t *testing.T) {
	w := newCluster(t, nil)
	a := w.put(newService("a"), 1)
	if err := w.c.Scale("default/a", 1, ""); !errors.Is(err, ErrNotSynced) {
		t.Errorf("Scale before Synced: %v", err)
	}
	w.d.syn(a) // is not refused: the daemon asks again when it has the table
	if w.c.Ready() == nil {
		t.Error("ready before Synced")
	}
	w.synced()
	w.until("the table", func() bool { return w.d.has(a) && w.d2.has(a) })
	if got := w.d.reasons(a); len(got) > 0 {
		t.Errorf("refused: %v", got)
	}
	b := w.put(newService("b", func(s *v1alpha1.WangellServiceSpec) {
		s.SessionAffinity = "ClientIP"
		s.Balancing = &v1alpha1.Balancing{LocalityPreference: v1alpha1.LocalityLocal}
	}), 2)
	w.until("the new one", func() bool { return w.d.has(b) })
	w.d.mu.Lock()
	if e := w.d.table[b]; e.Flags != wire.FlagAnnounce|wire.FlagAffinity|wire.FlagPreferLocal || e.Retries != v1alpha1.DefaultRetries {
		t.Errorf("entry %+v", e)
	}
	w.d.mu.Unlock()
	other := newService("c")
	if err := w.c.Put(Service{Spec: other, Addr: b.Addr()}); err == nil || !strings.Contains(err.Error(), "is already "+
		"that of service default/b") {
		t.Errorf("an address twice: %v", err)
	}
	if err := w.c.Put(Service{Spec: other}); err == nil {
		t.Error("no address: accepted")
	}
	moved := w.put(newService("b"), 3)
	w.until("moved", func() bool { return w.d.has(moved) && !w.d.has(b) })
	if err := w.c.Delete("default/b"); err != nil {
		t.Error(err)
	}
	w.until("gone", func() bool { return !w.d.has(moved) && len(w.c.Status()) == 1 })
	if err := w.c.Delete("default/b"); err != nil {
		t.Errorf("Delete twice: %v", err)
	}
	w.put(other, 3) // its address is free again
	if _, ok := w.c.StatusOf("default/c"); !ok {
		t.Error("no status")
	}
}

// A service that is deleted and made again under its name can be scaled when the old one is gone, and not before: it
// would be forgotten.
func TestScaleOfAnotherOfThatName(t *testing.T) {
	w := newCluster(t, nil)
	w.put(newService("a"), 1)
	w.synced()
	w.scale("a", 1)
	w.untilState("a", "Warm")
	gone := make(chan struct{})
	w.rt.onStop = func(context.Context, string) error { <-gone; return nil }
	if err := w.c.Delete("default/a"); err != nil {
		t.Fatal(err)
	}
	w.put(newService("a"), 1)
	if err := w.c.Scale("default/a", 1, "tested"); err == nil || !strings.Contains(err.Error(), "still being removed") {
		t.Errorf("scaled while the old one is there: %v", err)
	}
	close(gone)
	w.until("the new one is scaled", func() bool { return w.c.Scale("default/a", 1, "tested") == nil })
	w.untilState("a", "Warm")
}

func TestChanged(t *testing.T) {
	w := newCluster(t, nil)
	for i := range 5 {
		w.put(newService(fmt.Sprint("s", i)), byte(i+1))
	}
	w.synced()
	seen := map[runtime.Key]bool{}
	for len(seen) < 5 {
		keys, err := w.c.Changed(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			seen[k] = true
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if keys, err := w.c.Changed(ctx); err == nil {
		t.Errorf("changed without a reason: %v", keys)
	}
	w.scale("s3", 1)
	w.untilState("s3", "Warm")
	for warm := false; !warm; {
		keys, err := w.c.Changed(t.Context())
		if err != nil || !slices.Equal(keys, []runtime.Key{"default/s3"}) {
			t.Fatalf("changed: %v, %v", keys, err)
		}
		st, _ := w.c.StatusOf(keys[0])
		warm = st.Service.Status.State == "Warm" && st.Serving == 1 && st.Desired == 1
	}
}

func TestSeveralNodes(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n2", "n1", "n2"} })
	a := w.put(newService("a", upTo(3)), 1)
	w.synced()
	w.until("the table", func() bool { return w.d.has(a) && w.d2.has(a) })
	w.d.syn(a)
	w.untilPods(a, " serving")
	home, edge := w.d2.backend(a, 0), w.d.backend(a, 0)
	// How a warm service is balanced may change at any time, and its pods stay.
	retries := int32(0)
	w.put(newService("a", upTo(3), func(s *v1alpha1.WangellServiceSpec) { s.SessionAffinity, s.Retries = "ClientIP", &retries }), 1)
	for _, d := range []*fakeDaemon{w.d, w.d2} {
		w.until("the changed table", func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.table[a].Flags == wire.FlagAnnounce|wire.FlagAffinity && d.table[a].Retries == 0
		})
	}
	if p := w.d.backend(a, 0); p.PodID != edge.PodID || w.d.pods(a) != " serving" {
		t.Errorf("pods after the change: %s %+v", w.d.pods(a), p)
	}
	if home.Node != "n2" || home.NodeAddr != nodeAddr("n2") || home.Netns == "" || edge.Netns != "" || edge.NodeAddr != home.NodeAddr {
		t.Errorf("home has %+v, edge has %+v", home, edge)
	}
	w.scale("a", 3)
	w.untilPods(a, " serving serving serving")
	if st := w.status("a"); st.Serving != 3 || st.Desired != 3 || st.Service.Status.Replicas != 3 || st.LastWake == nil || st.Pods[0].Node != "n2" {
		t.Errorf("status %+v", st)
	}

	// It is idle once both nodes say so.
	last := monotime.Now()
	idle := &wire.Idle{Service: a, LastPacket: last}
	for _, d := range []*fakeDaemon{w.d, w.d2} {
		d.set(func(d *fakeDaemon) { d.last[a] = last })
	}
	w.d.send(idle)
	w.d.send(&wire.Trace{Service: a, PodID: home.PodID, ReleasedN: 7}) // comes after it
	w.until("the first is handled", func() bool { return w.status("a").LastWake.Released == 7 })
	if w.state("a") != "Warm" {
		t.Errorf("%s although only one node is idle", w.state("a"))
	}
	w.d2.send(idle)
	w.untilState("a", "Cold")
	w.untilPods(a, "")
	if running, _, stopped := w.rt.state(); len(running) != 0 || len(stopped) != 3 {
		t.Errorf("running %v, stopped %v", running, stopped)
	}
}

// A drain is quiet only when every daemon knows of it.
func TestQuietWaitsForEveryDaemon(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n1", "n1"} })
	a := w.put(newService("a", upTo(2)), 1)
	w.synced()
	w.until("the table", func() bool { return w.d.has(a) })
	w.d.syn(a)
	w.untilPods(a, " serving")
	w.scale("a", 2)
	w.untilPods(a, " serving serving")
	release := w.d2.stick(t)
	w.scale("a", 1)
	w.until("n1 drains", func() bool { return strings.Contains(w.d.pods(a), "draining") })
	w.d.send(&wire.Trace{Service: a, PodID: wireID("a-1"), ReleasedN: 7}) // comes after its answer
	w.until("its answer is handled", func() bool { return w.status("a").LastWake.Released == 7 })
	if _, _, stopped := w.rt.state(); len(stopped) > 0 {
		t.Errorf("stopped %v although n2 may still give it flows", stopped)
	}
	release()
	w.untilPods(a, " serving")
	if running, _, stopped := w.rt.state(); len(running) != 1 || len(stopped) != 1 {
		t.Errorf("running %v, stopped %v", running, stopped)
	}
}

// A daemon that leaves is not waited for.
func TestQuietDoesNotWaitForWhoLeft(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n1", "n1"} })
	a := w.put(newService("a", upTo(2)), 1)
	w.synced()
	w.scale("a", 2)
	w.untilPods(a, " serving serving")
	release := w.d2.stick(t)
	w.scale("a", 1)
	w.until("n1 drains", func() bool { return strings.Contains(w.d.pods(a), "draining") })
	go w.d2.client.Close() // it waits for its handler
	w.until("one is left", func() bool { return w.d.pods(a) == " serving" })
	release()
}

func TestRollout(t *testing.T) {
	w := newCluster(t, nil)
	a := w.put(newService("a"), 1)
	w.synced()
	w.scale("a", 1)
	w.untilPods(a, " serving")
	newer := newService("a", func(s *v1alpha1.WangellServiceSpec) { s.Args = []string{"-v"} })
	w.put(newer, 1)
	w.cluster.next = []string{"n2"}
	p := w.cluster.place(newer)
	p.Started = 0
	w.cluster.appeared <- p
	w.cluster.appeared <- p // the same may be told twice
	w.untilPods(a, " serving serving")
	w.cluster.leaving <- "a-1"
	w.untilPods(a, " draining serving")
	if _, started, stopped := w.rt.state(); len(started) != 2 || len(stopped) != 0 {
		t.Errorf("started %v, stopped %v", started, stopped)
	}
	w.rt.exits <- runtime.Exit{PodID: "a-1", Service: "default/a", Code: 143}
	w.untilPods(a, " serving")
	if w.state("a") != "Warm" || w.status("a").Service.Status.Message != "" {
		t.Errorf("status %+v", w.status("a"))
	}
}

// The last pod is evicted: the service waits for its successor.
func TestLastPodLeaves(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n1", "n2"} })
	a := w.put(newService("a"), 1)
	w.synced()
	w.scale("a", 1)
	w.untilPods(a, " serving")
	w.cluster.leaving <- "a-1"
	w.untilPods(a, " draining serving")
	if b := w.d.backend(a, 1); b.Node != "n2" {
		t.Errorf("the next one is %+v", b)
	}
}

// The next leader takes what runs, whatever its spec, and stops nothing that it does not know.
func TestClusterAdopts(t *testing.T) {
	a, x := newService("a", upTo(3)), newService("x")
	older := newService("a", func(s *v1alpha1.WangellServiceSpec) { s.Args = []string{"old"} })
	w := newCluster(t, func(r *fakeCluster) {
		r.next = []string{"n1", "n2", "n1", "n1", "n2"}
		r.place(a)
		r.place(older)
		r.place(x)
		early := r.place(a) // its network is there, its process not yet
		early.Started = 0
		r.pods[early.ID] = early
		blank := r.place(a) // it has no network yet
		blank.Started, blank.Addr = 0, netip.Addr{}
		r.pods[blank.ID] = blank
	})
	vip := w.put(a, 1)
	w.cluster.leaving <- "a-1" // before the services are known
	w.synced()
	w.until("they serve", func() bool {
		return strings.Count(w.d.pods(vip), " serving") == 2 && strings.Contains(w.d.pods(vip), "draining")
	})
	if running, _, stopped := w.rt.state(); len(running) != 5 || len(stopped) != 0 {
		t.Errorf("running %v, stopped %v", running, stopped)
	}
	// A service that is told of later finds its pods, too.
	other := w.put(x, 2)
	w.until("x serves", func() bool { return w.d.pods(other) == " serving" })
	if st := w.status("x"); st.Service.Status.State != "Warm" || st.Pods[0].ID != "x-3" {
		t.Errorf("status %+v", st)
	}
}

// TestClusterLeast: a service that never sleeps has its pods without a client, whether it was there from the beginning
// or comes later; those that it has already count.
func TestClusterLeast(t *testing.T) {
	least := func(s *v1alpha1.WangellServiceSpec) { s.MinReplicas, s.MaxReplicas = 2, 2 }
	a, b, x := newService("a", least), newService("b", least), newService("x", least)
	w := newCluster(t, func(r *fakeCluster) {
		r.next = []string{"n1", "n2", "n1"}
		r.place(x)
		r.place(x)
	})
	first := w.put(a, 1)
	w.synced()
	two := func(vip netip.AddrPort) {
		t.Helper()
		w.until("two pods serve", func() bool { return strings.Count(w.d.pods(vip), " serving") == 2 })
	}
	two(first)
	two(w.put(b, 2))
	two(w.put(x, 3))
	if running, _, stopped := w.rt.state(); len(running) != 6 || len(stopped) != 0 {
		t.Errorf("running %v, stopped %v", running, stopped)
	}
}

func TestSeenAndNodes(t *testing.T) {
	w := newCluster(t, nil)
	w.synced()
	both := []string{"n1=192.0.2.1", "n2=192.0.2.2"}
	nodes := func(d *fakeDaemon) (n []string) {
		d.set(func(d *fakeDaemon) { n = slices.Clone(d.nodes) })
		return n
	}
	w.until("both know both", func() bool { return slices.Equal(nodes(w.d), both) && slices.Equal(nodes(w.d2), both) })
	w.d2.send(&wire.PodReport{Event: uint8(runtime.PodContainerStarted), Service: "default/a", UID: "u1", Name: "a-x", Container: "c",
		Addr: netip.MustParseAddr("10.1.0.5"), Netns: "/ns/5", SpecHash: "h", At: 77, Code: 3})
	w.until("seen", func() bool { w.cluster.mu.Lock(); defer w.cluster.mu.Unlock(); return len(w.cluster.saw) == 1 })
	want := runtime.PodReport{
		Event: runtime.PodContainerStarted, Name: "a-x", Container: "c", At: 77, Code: 3,
		Pod: runtime.Pod{ID: "u1", Service: "default/a", SpecHash: "h", Addr: netip.MustParseAddr("10.1.0.5"), Netns: "/ns/5",
			Node: "n2", NodeAddr: nodeAddr("n2"), Started: 77},
	}
	if got := w.cluster.saw[0]; got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// One that says that it will be back is kept; one that is gone is not.
	if err := w.d2.client.Leave(); err != nil {
		t.Fatal(err)
	}
	w.until("it left", func() (left bool) { w.c.loop.call(func() { left = len(w.c.engine.daemons.peers) == 1 }); return left })
	w.d.client.Close()
	w.d = w.daemonOn("n1") // it tells nothing of itself yet, but did before
	w.until("both are told", func() bool { return slices.Equal(nodes(w.d), both) })
	w.d2 = w.daemonOn("n2")
	w.until("told, too", func() bool { return slices.Equal(nodes(w.d2), both) })
	w.d2.client.Close()
	w.until("n1 is alone", func() bool { return slices.Equal(nodes(w.d), both[:1]) })
}

// When all daemons were lost at once, the first that is back does not hear that it is alone: it would get all VIPs.
func TestAllDaemonsLost(t *testing.T) {
	w := newCluster(t, nil)
	w.synced()
	both := []string{"n1=192.0.2.1", "n2=192.0.2.2"}
	w.until("n1 knows both", func() (know bool) {
		w.d.set(func(d *fakeDaemon) { know = slices.Equal(d.nodes, both) })
		return know
	})
	w.d.client.Close()
	w.d2.client.Close()
	w.until("both are lost", func() (lost bool) { w.c.loop.call(func() { lost = len(w.c.engine.daemons.peers) == 0 }); return lost })
	w.d = w.daemonOn("n1")
	w.until("n1 is back", func() (back bool) { w.c.loop.call(func() { back = len(w.c.engine.daemons.peers) == 1 }); return back })
	w.c.loop.call(func() { w.c.receiver.nodes.flush() })
	w.d2 = w.daemonOn("n2")
	var first []string
	w.until("n1 is told", func() bool { w.d.set(func(d *fakeDaemon) { first = slices.Clone(d.nodes) }); return len(first) > 0 })
	if !slices.Equal(first, both) {
		t.Errorf("the first that n1 heard: %v", first)
	}
}

// A node that is not heard any more: its pod is replaced, and taken again when it is back.
func TestNodeIsLost(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n2", "n1"} })
	a := w.put(newService("a"), 1)
	w.synced()
	w.scale("a", 1)
	w.untilPods(a, " serving")
	w.d2.client.Close()
	w.until("the other node serves", func() bool { return w.d.pods(a) == " draining serving" })
	w.d2 = w.daemonOn("n2")
	w.until("one of them goes", func() bool { return w.d.pods(a) == " serving" && w.d2.pods(a) == " serving" })
	if running, _, stopped := w.rt.state(); len(running) != 1 || len(stopped) != 1 {
		t.Errorf("running %v, stopped %v", running, stopped)
	}
}

func TestStartFailsAfterListening(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.vip("a")
	w.rt.onReturn = func() error { // the pod runs and listens, then the runtime is gone
		w.untilState("a", "Warm")
		return fmt.Errorf("start: %w", runtime.ErrUnavailable)
	}
	w.d.syn(a)
	w.until("its remains are stopped", func() bool { _, _, s := w.rt.state(); return len(s) == 1 && w.state("a") == "Cold" })
	if got := w.status("a").Service.Status.Message; got != "crashed: its start failed although it listened: start: "+
		"runtime not available" {
		t.Errorf("message %q", got)
	}
	w.until("no pod is left", func() bool { return len(w.status("a").Pods) == 0 })
	w.rt.onReturn = nil
	w.warm("a")
}

// A pod that listens before its start has returned has its grace period all the same, unless the start hangs.
func TestStopBeforeStartReturns(t *testing.T) {
	for _, c := range []struct {
		name  string
		hangs bool
		want  []time.Duration // the grace periods of Stop
	}{{"it returns", false, []time.Duration{30 * time.Second}}, {"it hangs", true, nil}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			w.apply(newService("a"))
			var start context.Context
			w.rt.onStart = func(ctx context.Context, _ *v1alpha1.WangellService) error { start = ctx; return nil }
			slept := make(chan error, 1)
			w.rt.onReturn = func() error {
				w.untilState("a", "Warm")
				go func() { slept <- w.c.Sleep(t.Context(), "default/a") }()
				w.until("the pod is to stop", func() (stopping bool) {
					w.c.loop.call(func() { p := w.c.engine.table.byRuntime["a-1"]; stopping = p != nil && p.stopping })
					return stopping
				})
				if c.hangs {
					<-start.Done()
				}
				return start.Err()
			}
			w.d.syn(w.vip("a"))
			if err := <-slept; err != nil {
				t.Error(err)
			}
			w.rt.mu.Lock()
			defer w.rt.mu.Unlock()
			if !slices.Equal(w.rt.grace, c.want) {
				t.Errorf("stopped with %v, want %v", w.rt.grace, c.want)
			}
		})
	}
}

// A process that ends because the runtime does is not the service's fault: the start is tried again.
func TestExitBeforeStartReturns(t *testing.T) {
	for _, c := range []struct {
		name, state string
		err         error
	}{{"the runtime is gone", "Warm", fmt.Errorf("start: %w", runtime.ErrUnavailable)}, {"the process " +
		"crashed", "Failed", nil}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.d.set(func(d *fakeDaemon) { d.mute = true })
			w.apply(newService("a"))
			a := w.vip("a")
			w.rt.onReturn = func() error {
				w.rt.onReturn = nil
				w.rt.exits <- runtime.Exit{PodID: "a-1", Service: "default/a", Code: 1, LogTail: "broken pipe"}
				w.until("the exit is known", func() (known bool) {
					w.c.loop.call(func() { p := w.c.engine.table.byRuntime["a-1"]; known = p != nil && p.early != nil })
					return known
				})
				w.d.set(func(d *fakeDaemon) { d.mute = c.err == nil })
				return c.err
			}
			w.d.syn(a)
			w.untilState("a", c.state)
		})
	}
}

// The number of pods follows the load.
func TestFollowsLoad(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) {
		s.MaxReplicas, s.Scaling = 3, &v1alpha1.Scaling{Metric: v1alpha1.MetricConnections, Target: 10}
	}))
	events := w.c.Subscribe(t.Context())
	a := w.warm("a")
	w.d.send(&wire.Stats{Pods: []wire.PodStats{{Service: a, PodID: wireID("a-1"), OpenFlows: 21, NewFlows: 21, LastPacket: monotime.Now()}}})
	w.until("three pods", func() bool { return w.d.pods(a) == " serving serving serving" })
	for e := range events {
		if e.Kind == EventReport && strings.HasPrefix(e.Text, "scaled") {
			if e.Text != "scaled from 1 to 3: connections 21 for each pod, target 10: wants 3" {
				t.Errorf("event %q", e.Text)
			}
			break
		}
	}
	if o, ok := w.c.Observe("default/a"); !ok || o.Open != 21 || o.Serving != 3 || o.Desired != 3 || len(o.Pods) != 3 {
		t.Errorf("observation %+v", o)
	}
}

// A pod that somebody else made, beyond what is wanted, is drained and stopped; but not while the runtime replaces
// pods.
func TestOneTooMany(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.roll = true })
	a := w.put(newService("a", upTo(3)), 1)
	w.synced()
	w.scale("a", 1)
	w.untilPods(a, " serving")
	w.cluster.mu.Lock()
	w.cluster.asked = 0
	w.cluster.mu.Unlock()
	p := w.cluster.place(newService("a", upTo(3)))
	p.Started = 0
	w.cluster.appeared <- p
	w.untilPods(a, " serving serving")
	w.until("its time came while pods are replaced", func() bool {
		w.cluster.mu.Lock()
		defer w.cluster.mu.Unlock()
		return w.cluster.asked > 0
	})
	if _, _, stopped := w.rt.state(); len(stopped) != 0 || w.d.pods(a) != " serving serving" {
		t.Errorf("stopped %v, there are%s", stopped, w.d.pods(a))
	}
	w.cluster.mu.Lock()
	w.cluster.roll = false
	w.cluster.mu.Unlock()
	w.untilPods(a, " serving")
	if _, started, stopped := w.rt.state(); len(started) != 2 || len(stopped) != 1 || w.status("a").Desired != 1 {
		t.Errorf("started %v, stopped %v, %+v", started, stopped, w.status("a"))
	}
}

// A pod of an older spec is found, which listens on another port.
func TestAdoptsPort(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) {
		p := r.place(newService("a"))
		p.Port = 4711
		r.pods[p.ID] = p
	})
	a := w.put(newService("a"), 1)
	w.synced()
	w.untilPods(a, " serving")
	if b := w.d.backend(a, 0); b.Addr.Port() != 4711 {
		t.Errorf("daemons are told of port %d", b.Addr.Port())
	}
}
