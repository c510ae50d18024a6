// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// fakeRuntime runs pods that are entries of a map. What it does can be changed by a test through its
// functions, which are called without its lock.
type fakeRuntime struct {
	mu       sync.Mutex
	n        int
	pods     map[string]runtime.Pod
	started  []string // IDs, in order
	stopped  []string
	grace    []time.Duration
	forgot   []runtime.Key
	prepared []runtime.Key
	exits    chan runtime.Exit

	onStart   func(ctx context.Context, s *v1alpha1.WangellService) error
	onStop    func(ctx context.Context, id string) error
	onReturn  func() error // instead of success, once the pod runs
	onPrepare func(ctx context.Context, s *v1alpha1.WangellService, p runtime.Progress) error
}

func newFakeRuntime() *fakeRuntime {
	return &fakeRuntime{pods: map[string]runtime.Pod{}, exits: make(chan runtime.Exit, 64)}
}

func (r *fakeRuntime) Prepare(ctx context.Context, s *v1alpha1.WangellService, p runtime.Progress) error {
	if r.onPrepare != nil {
		if err := r.onPrepare(ctx, s, p); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prepared = append(r.prepared, runtime.KeyOf(s))
	return nil
}

func (r *fakeRuntime) Forget(_ context.Context, k runtime.Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgot = append(r.forgot, k)
	return nil
}

func (r *fakeRuntime) Start(ctx context.Context, s *v1alpha1.WangellService, hooks runtime.StartHooks) (runtime.Pod, error) {
	if r.onStart != nil {
		if err := r.onStart(ctx, s); err != nil {
			return runtime.Pod{}, err
		}
	}
	if ctx.Err() != nil {
		return runtime.Pod{}, ctx.Err()
	}
	hooks.Phase(runtime.PhaseImage, monotime.Now())
	p := r.add(s)
	hooks.Network(p)
	for _, ph := range []runtime.Phase{runtime.PhaseSandbox, runtime.PhaseCreated, runtime.PhaseStarted} {
		hooks.Phase(ph, monotime.Now())
	}
	if r.onReturn != nil {
		if err := r.onReturn(); err != nil {
			return runtime.Pod{}, err
		}
	}
	return p, nil
}

// add makes a pod.
func (r *fakeRuntime) add(s *v1alpha1.WangellService) runtime.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	p := runtime.Pod{
		ID: fmt.Sprintf("%s-%d", s.Name, r.n), Service: runtime.KeyOf(s), SpecHash: v1alpha1.Hash(&s.Spec),
		Addr: netip.AddrFrom4([4]byte{10, 46, 128, byte(r.n)}), Netns: fmt.Sprintf("/ns/%d", r.n), Started: monotime.Now(),
	}
	r.pods[p.ID] = p
	r.started = append(r.started, p.ID)
	return p
}

func (r *fakeRuntime) Stop(ctx context.Context, id string, grace time.Duration) error {
	if r.onStop != nil {
		if err := r.onStop(ctx, id); err != nil {
			return err
		}
	}
	r.mu.Lock()
	p, there := r.pods[id]
	delete(r.pods, id)
	r.stopped, r.grace = append(r.stopped, id), append(r.grace, grace)
	r.mu.Unlock()
	if there {
		r.exits <- runtime.Exit{PodID: id, Service: p.Service, Code: 143}
	}
	return nil
}

func (r *fakeRuntime) List(context.Context) ([]runtime.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []runtime.Pod
	for _, p := range r.pods {
		out = append(out, p)
	}
	return out, nil
}

func (r *fakeRuntime) Exits() <-chan runtime.Exit { return r.exits }
func (r *fakeRuntime) Logs(_ context.Context, k runtime.Key, w io.Writer, tail int, follow bool) error {
	_, err := fmt.Fprintf(w, "%s %d %v\n", k, tail, follow)
	return err
}
func (r *fakeRuntime) Versions(context.Context) map[string]string { return nil }
func (r *fakeRuntime) Close() error                               { return nil }
func (r *fakeRuntime) Destroy(context.Context) error              { return nil }

// state returns copies of what happened.
func (r *fakeRuntime) state() (running, started, stopped []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.pods {
		running = append(running, id)
	}
	slices.Sort(running)
	return running, slices.Clone(r.started), slices.Clone(r.stopped)
}

// fakeDaemon is a real end of the wire with a gate made of maps.
type fakeDaemon struct {
	client *wire.Client
	node   string
	// settle has the controller see what the test has changed before: the race detector does not follow datagrams.
	settle func()

	mu        sync.Mutex
	table     map[netip.AddrPort]wire.Service
	backends  map[netip.AddrPort]*wire.Backends // the last of each service
	history   []string                          // "address: states" of all
	refused   map[netip.AddrPort][]string
	last      map[netip.AddrPort]monotime.Time // last packet
	open      uint32                           // open flows of draining pods
	mute      bool                             // do not answer that pods listen
	deaf      bool                             // do not answer that pods are drained
	seq       uint64
	loads     map[uint64]uint32 // open flows of pods, as last told
	loadsTold int               // messages of that
	nodes     []string          // as last told, with their addresses
	stuck     chan struct{}     // if set: Backends are not handled before it is closed
}

// world is a controller with a daemon and a runtime.
type world struct {
	t    testing.TB
	c    *Controller
	rt   *fakeRuntime
	d    *fakeDaemon
	cfg  Config
	addr string

	addresses map[runtime.Key]netip.Addr // given to services without an address of their own
	applied   []runtime.Key
}

func newWorld(t testing.TB, change func(*Config)) *world {
	w := &world{t: t, rt: newFakeRuntime()}
	if change == nil {
		change = func(*Config) {}
	}
	w.boot(change)
	w.d = w.daemon()
	t.Cleanup(func() {
		w.d.client.Close()
		w.c.Detach()
	})
	return w
}

// boot makes a controller.
func (w *world) boot(change func(*Config)) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.cfg = Config{Runtime: w.rt, Conn: conn, Node: "n1"}
	rand.Read(w.cfg.Key[:])
	change(&w.cfg)
	w.addr = conn.LocalAddr().String()
	if w.c, err = New(w.cfg); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) daemon() *fakeDaemon { return w.daemonOn("n1") }

// daemonOn is the daemon of a node, which tells first what it is.
func (w *world) daemonOn(node string, first ...wire.Message) *fakeDaemon {
	c := w.c
	d := &fakeDaemon{
		node: node, settle: func() { c.loop.call(func() {}) }, table: map[netip.AddrPort]wire.Service{}, backends: map[netip.AddrPort]*wire.Backends{},
		refused: map[netip.AddrPort][]string{}, last: map[netip.AddrPort]monotime.Time{}, loads: map[uint64]uint32{},
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	d.client, err = wire.NewClient(wire.ClientConfig{
		Server: w.addr, Key: w.cfg.Key, Node: node,
		Services: d.services, Receive: d.receive, First: first,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (d *fakeDaemon) services(full bool, upserts []wire.Service, removals []netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if full {
		clear(d.table)
	}
	for _, s := range upserts {
		d.table[s.Addr] = s
	}
	for _, a := range removals {
		delete(d.table, a)
		delete(d.backends, a)
	}
}

func (d *fakeDaemon) receive(m wire.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if stuck := d.stuck; stuck != nil {
		d.mu.Unlock()
		<-stuck
		d.mu.Lock()
	}
	switch m := m.(type) {
	case *wire.Nodes:
		if m.Piece == 0 {
			d.nodes = nil
		}
		for _, n := range m.Nodes {
			d.nodes = append(d.nodes, n.Name+"="+n.Addr.String())
		}
	case *wire.Loads:
		d.loadsTold++
		for _, l := range m.Pods {
			d.loads[l.PodID] = l.OpenFlows
		}
	case *wire.Refuse:
		d.refused[m.Service] = append(d.refused[m.Service], m.Reason)
	case *wire.Backends:
		if old := d.backends[m.Service]; old != nil && old.Generation >= m.Generation {
			return
		}
		d.backends[m.Service] = m
		d.history = append(d.history, fmt.Sprintf("%v:%s", m.Service, states(m)))
		for _, b := range m.Pods {
			switch {
			case b.Node != d.node:
			case b.State == wire.PodStarting && !d.mute:
				d.client.Send(&wire.Listening{Service: m.Service, PodID: b.PodID, At: monotime.Now()})
			case b.State == wire.PodDraining && !d.deaf:
				d.client.Send(&wire.Quiet{Service: m.Service, PodID: b.PodID, Generation: m.Generation, LastPacket: d.last[m.Service], OpenFlows: d.open})
			}
		}
	}
}

// states are the states of all pods of a message, as " starting serving".
func states(m *wire.Backends) string {
	s := ""
	if m != nil {
		for _, b := range m.Pods {
			s += " " + map[wire.PodState]string{wire.PodStarting: "starting", wire.PodServing: "serving", wire.PodDraining: "draining"}[b.State]
		}
	}
	return s
}

// syn is a SYN that finds no pod.
func (d *fakeDaemon) syn(a netip.AddrPort) {
	d.settle()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seq++
	now := monotime.Now()
	d.last[a] = now
	d.client.Send(&wire.Wake{Service: a, Seq: d.seq, SYNSeen: now.Add(-50 * time.Microsecond), Noticed: now, Parked: 1})
}

func (d *fakeDaemon) send(m wire.Message) { d.client.Send(m) }

// pods returns the states of a service's pods as the daemon knows them.
func (d *fakeDaemon) pods(a netip.AddrPort) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return states(d.backends[a])
}

func (d *fakeDaemon) backend(a netip.AddrPort, i int) wire.Backend {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.backends[a].Pods[i]
}

func (d *fakeDaemon) reasons(a netip.AddrPort) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.refused[a])
}

func (d *fakeDaemon) has(a netip.AddrPort) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.table[a]
	return ok
}

// set changes how the daemon answers.
func (d *fakeDaemon) set(f func(*fakeDaemon)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

// newService makes a service with its defaults.
func newService(name string, change ...func(*v1alpha1.WangellServiceSpec)) *v1alpha1.WangellService {
	s := &v1alpha1.WangellService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       v1alpha1.WangellServiceSpec{Image: "registry.example/" + name + ":1", Port: 80, TargetPort: 8080},
	}
	for _, f := range change {
		f(&s.Spec)
	}
	v1alpha1.Default(s)
	return s
}

// apply makes the services the given ones. A service keeps its address, also under the next controller.
func (w *world) apply(services ...*v1alpha1.WangellService) {
	w.t.Helper()
	if err := w.tryApply(services...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) tryApply(services ...*v1alpha1.WangellService) error {
	if w.addresses == nil {
		w.addresses = map[runtime.Key]netip.Addr{}
	}
	var put []Service
	var keys []runtime.Key
	for _, s := range services {
		addr, known := w.addresses[runtime.KeyOf(s)]
		switch {
		case s.Spec.Address != "":
			addr = netip.MustParseAddr(s.Spec.Address)
		case !known:
			n := len(w.addresses) + 2
			addr = netip.AddrFrom4([4]byte{10, 46, byte(100 + n>>8), byte(n)})
			w.addresses[runtime.KeyOf(s)] = addr
		}
		put = append(put, Service{Spec: s, Addr: addr, Announce: true})
		keys = append(keys, runtime.KeyOf(s))
	}
	remove := slices.DeleteFunc(slices.Clone(w.applied), func(k runtime.Key) bool { return slices.Contains(keys, k) })
	if err := w.c.Update(put, remove); err != nil {
		return err
	}
	w.applied = keys
	return w.c.Synced(context.Background())
}

// vip is the service address of a service, once the daemon knows it.
func (w *world) vip(name string) netip.AddrPort {
	w.t.Helper()
	for _, s := range w.c.Status() {
		if s.Service.Name == name {
			a := netip.AddrPortFrom(netip.MustParseAddr(s.Service.Status.LoadBalancerIP), uint16(s.Service.Spec.Port))
			w.until("the daemon knows "+name, func() bool { return w.d.has(a) })
			return a
		}
	}
	w.t.Fatalf("no service %s", name)
	return netip.AddrPort{}
}

func (w *world) status(name string) Status {
	for _, s := range w.c.Status() {
		if s.Service.Name == name {
			return s
		}
	}
	return Status{}
}

func (w *world) state(name string) string { return w.status(name).Service.Status.State }

// until waits for a condition.
func (w *world) until(what string, f func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			running, started, stopped := w.rt.state()
			w.t.Fatalf("never: %s\nruntime: running %v, started %v, stopped %v\nstatus: "+
				"%+v", what, running, started, stopped, w.c.Status())
		}
	}
}

func (w *world) untilState(name, state string) {
	w.t.Helper()
	w.until(name+" is "+state, func() bool { return w.state(name) == state })
}

// warm wakes a service and returns its address.
func (w *world) warm(name string) netip.AddrPort {
	w.t.Helper()
	a := w.vip(name)
	w.d.syn(a)
	w.untilState(name, "Warm")
	w.until("the daemon serves "+name, func() bool { return w.d.pods(a) == " serving" })
	return a
}

var errScript = errors.New(`image "x": not found`)
