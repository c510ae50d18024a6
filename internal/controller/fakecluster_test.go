// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/reservation"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// fakeCluster is a runtime whose pods are on several nodes, and come and go.
type fakeCluster struct {
	*fakeRuntime
	appeared chan runtime.Pod
	leaving  chan runtime.Leave
	ending   chan runtime.Ending

	mu    sync.Mutex
	next  []string // nodes of the next pods; without any, n1
	saw   []runtime.PodReport
	logs  []runtime.PodLog
	nodes []string // of the last SetNodes
	roll  bool
	// inherited is what Inherited returns.
	inherited []string
	asked     int // how often Rolling was called

	addrs     map[string][]netip.Addr      // of nodes; nil: those of nodeAddr
	taints    map[string][]corev1.Taint    // of nodes
	absent    map[string]bool              // nodes that the cluster does not have
	labels    map[string]map[string]string // of nodes, further ones
	preferred map[v1alpha1.Key][]string    // of the last PreferNodes
	frozen    map[string]bool              // of the last SetFrozen of each pod
	reserved  reservation.Summary
	onPull    func(runtime.ImagePull) error
	pulls     []runtime.ImagePull
}

func (r *fakeCluster) PullImage(ctx context.Context, pull runtime.ImagePull) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil { // given up before it began
		return ctx.Err()
	}
	r.pulls = append(r.pulls, pull)
	if r.onPull == nil {
		return nil
	}
	return r.onPull(pull)
}

func (r *fakeCluster) DescribeNode(_ context.Context, name string) (map[string]string, []corev1.Taint, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.absent[name] {
		return nil, nil, runtime.ErrNotFound
	}
	labels := map[string]string{corev1.LabelHostname: name}
	maps.Copy(labels, r.labels[name])
	return labels, r.taints[name], nil
}

func (r *fakeCluster) NodeAddrs(_ context.Context, name string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.addrs == nil {
		return []netip.Addr{nodeAddr(name)}, nil
	}
	if addrs, known := r.addrs[name]; known {
		return addrs, nil
	}
	return nil, runtime.ErrNotFound
}

func (r *fakeCluster) PreferNodes(k v1alpha1.Key, names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.preferred == nil {
		r.preferred = map[v1alpha1.Key][]string{}
	}
	r.preferred[k] = names
}

func (r *fakeCluster) SetFrozen(podID string, frozen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frozen == nil {
		r.frozen = map[string]bool{}
	}
	r.frozen[podID] = frozen
}

func (r *fakeCluster) Reservations(v1alpha1.Key) reservation.Summary {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reserved
}

func (r *fakeCluster) Rolling(v1alpha1.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	return r.roll
}

func (r *fakeCluster) Inherited(v1alpha1.Key) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inherited
}

func (r *fakeCluster) Appeared() <-chan runtime.Pod { return r.appeared }

func (r *fakeCluster) Leaving() <-chan runtime.Leave { return r.leaving }

func (r *fakeCluster) Ending() <-chan runtime.Ending { return r.ending }

func (r *fakeCluster) ReportPod(s runtime.PodReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.saw = append(r.saw, s)
}

func (r *fakeCluster) ReportLog(l runtime.PodLog) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logs = append(r.logs, l)
}

func (r *fakeCluster) SetNodes(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes = names
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

func (r *fakeCluster) Start(ctx context.Context, s *v1alpha1.WangellService, hooks runtime.StartHooks) (runtime.Pod,
	error) {
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
	return newClusterWith(t, before, func(*Config) {})
}

// newClusterWith is newCluster with a change of the configuration.
func newClusterWith(t *testing.T, before func(*fakeCluster), change func(*Config)) *clusterWorld {
	t.Helper()
	w := &clusterWorld{world: &world{t: t, rt: newFakeRuntime()}}
	w.cluster = &fakeCluster{fakeRuntime: w.rt, appeared: make(chan runtime.Pod, 16),
		leaving: make(chan runtime.Leave, 16), ending: make(chan runtime.Ending, 16)}
	if before != nil {
		before(w.cluster)
	}
	w.boot(func(c *Config) {
		c.Runtime, c.Node = w.cluster, ""
		change(c)
	})
	w.d, w.d2 = w.daemonOn("n1", &wire.Node{Addr: nodeAddr("n1")}), w.daemonOn("n2", &wire.Node{Addr: nodeAddr("n2")})
	t.Cleanup(func() {
		w.d.client.Close()
		w.d2.client.Close()
		w.c.Detach()
	})
	w.untilDaemons(2)
	return w
}

// stick stops a daemon from handling messages until the returned function is called.
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
	if err := w.c.Scale(v1alpha1.Key("default/"+name), n, "tested"); err != nil {
		w.t.Fatal(err)
	}
}

func upTo(n int32) func(*v1alpha1.WangellServiceSpec) {
	return func(s *v1alpha1.WangellServiceSpec) { s.MaxReplicas = n }
}
