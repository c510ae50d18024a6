// SPDX-License-Identifier: Apache-2.0

package wired

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// instant is a runtime whose pods are entries of a map, spread over the nodes in turn, and start at once.
type instant struct {
	daemons int
	exits   chan runtime.Exit

	mu   sync.Mutex
	made int
	pods map[string]runtime.Pod
}

// newInstant returns a runtime with the pods that an earlier controller has left.
func newInstant(daemons int, pods []runtime.Pod) *instant {
	r := &instant{daemons: daemons, exits: make(chan runtime.Exit, 1024), made: len(pods), pods: map[string]runtime.Pod{}}
	for _, p := range pods {
		r.pods[p.ID] = p
	}
	return r
}

// NodeName returns the name of node i.
func NodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// NodeAddr returns the address of node i.
func NodeAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}) }

// Start implements runtime.Runtime.
func (r *instant) Start(_ context.Context, s *v1alpha1.WangellService, hooks runtime.StartHooks) (runtime.Pod, error) {
	r.mu.Lock()
	n := r.made
	r.made++
	p := runtime.Pod{
		ID: fmt.Sprintf("%s-%d", s.Name, n), Service: v1alpha1.KeyOf(s), SpecHash: v1alpha1.Hash(&s.Spec),
		Addr:  netip.AddrFrom4([4]byte{10, 128 + byte(n>>16), byte(n >> 8), byte(n)}),
		Netns: fmt.Sprintf("/var/run/netns/cni-%08d", n), Node: NodeName(n % r.daemons),
		NodeAddr: NodeAddr(n % r.daemons), Started: monotime.Now(),
	}
	r.pods[p.ID] = p
	r.mu.Unlock()
	hooks.Network(p)
	return p, nil
}

// Stop implements runtime.Runtime.
func (r *instant) Stop(_ context.Context, id string, _ time.Duration) error {
	r.mu.Lock()
	p, there := r.pods[id]
	delete(r.pods, id)
	r.mu.Unlock()
	if there {
		r.exits <- runtime.Exit{PodID: id, Service: p.Service, Code: 143, At: time.Now()}
	}
	return nil
}

// List implements runtime.Runtime.
func (r *instant) List(context.Context) ([]runtime.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pods := make([]runtime.Pod, 0, len(r.pods))
	for _, p := range r.pods {
		pods = append(pods, p)
	}
	return pods, nil
}

// Exits implements runtime.Runtime.
func (r *instant) Exits() <-chan runtime.Exit { return r.exits }

// Prepare implements runtime.Runtime: every image is there.
func (r *instant) Prepare(context.Context, *v1alpha1.WangellService, runtime.Progress) error {
	return nil
}

// Forget implements runtime.Runtime.
func (r *instant) Forget(context.Context, v1alpha1.Key) error { return nil }

// Logs implements runtime.Runtime: pods write nothing.
func (r *instant) Logs(context.Context, v1alpha1.Key, io.Writer, runtime.LogOptions) error {
	return nil
}

// Versions implements runtime.Runtime.
func (r *instant) Versions(context.Context) map[string]string { return nil }

// Close implements runtime.Runtime.
func (r *instant) Close() error { return nil }

// Destroy implements runtime.Runtime.
func (r *instant) Destroy(context.Context) error { return nil }

// Appeared implements runtime.Cluster: no pod comes from outside.
func (r *instant) Appeared() <-chan runtime.Pod { return nil }

// Leaving implements runtime.Cluster.
func (r *instant) Leaving() <-chan runtime.Leave { return nil }

// Ending implements runtime.Runtime.
func (r *instant) Ending() <-chan runtime.Ending { return nil }

// ReportPod implements runtime.Cluster.
func (r *instant) ReportPod(runtime.PodReport) {}

// ReportLog implements runtime.Cluster.
func (r *instant) ReportLog(runtime.PodLog) {}

// NodeAddrs implements runtime.Cluster: it knows none.
func (r *instant) NodeAddrs(context.Context, string) ([]netip.Addr, error) { return nil, nil }

// SetNodes implements runtime.Cluster.
func (r *instant) SetNodes([]string) {}

// Rolling implements runtime.Cluster.
func (r *instant) Rolling(v1alpha1.Key) bool { return false }

// Inherited implements runtime.Cluster.
func (r *instant) Inherited(v1alpha1.Key) []string { return nil }
