// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// fakeRuntime runs pods that are entries of a map. A test can change its behavior through its functions, which are
// called without its lock.
type fakeRuntime struct {
	mu       sync.Mutex
	n        int
	pods     map[string]runtime.Pod
	started  []string // IDs, in order
	stopped  []string
	grace    []time.Duration
	forgot   []v1alpha1.Key
	prepared []v1alpha1.Key
	exits    chan runtime.Exit
	ending   chan runtime.Ending

	onStart   func(ctx context.Context, s *v1alpha1.WangellService) error
	onStop    func(ctx context.Context, id string) error
	onReturn  func() error // instead of success, once the pod runs
	onPrepare func(ctx context.Context, s *v1alpha1.WangellService, p runtime.Progress) error
}

func newFakeRuntime() *fakeRuntime {
	return &fakeRuntime{pods: map[string]runtime.Pod{}, exits: make(chan runtime.Exit, 64),
		ending: make(chan runtime.Ending, 64)}
}

func (r *fakeRuntime) Prepare(ctx context.Context, s *v1alpha1.WangellService, p runtime.Progress) error {
	if r.onPrepare != nil {
		if err := r.onPrepare(ctx, s, p); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prepared = append(r.prepared, v1alpha1.KeyOf(s))
	return nil
}

func (r *fakeRuntime) Forget(_ context.Context, k v1alpha1.Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgot = append(r.forgot, k)
	return nil
}

func (r *fakeRuntime) Start(ctx context.Context, s *v1alpha1.WangellService, hooks runtime.StartHooks) (runtime.Pod,
	error) {
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
		ID: fmt.Sprintf("%s-%d", s.Name, r.n), Service: v1alpha1.KeyOf(s), SpecHash: v1alpha1.Hash(&s.Spec),
		Addr: netip.AddrFrom4([4]byte{10, 46, 128, byte(r.n)}), Netns: fmt.Sprintf("/ns/%d", r.n), Started: monotime.Now(),
		Cgroup: fmt.Sprintf("/test/%d", r.n),
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

func (r *fakeRuntime) Ending() <-chan runtime.Ending { return r.ending }

func (r *fakeRuntime) Logs(_ context.Context, k v1alpha1.Key, w io.Writer, o runtime.LogOptions) error {
	_, err := fmt.Fprintf(w, "%s %s %d %v\n", k, o.Container, o.Tail, o.Follow)
	return err
}

func (r *fakeRuntime) Versions(context.Context) map[string]string { return nil }

func (r *fakeRuntime) Close() error { return nil }

func (r *fakeRuntime) Destroy(context.Context) error { return nil }

// state returns copies of the pods that run, and of the IDs that were started and stopped.
func (r *fakeRuntime) state() (running, started, stopped []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.pods {
		running = append(running, id)
	}
	slices.Sort(running)
	return running, slices.Clone(r.started), slices.Clone(r.stopped)
}
