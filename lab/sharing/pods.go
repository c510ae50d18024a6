// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// pods runs pods on one of the nodes. For each it does what kubelet does: it has the node's container runtime pull the
// image through CRI if the node lacks it, and then start a container.
type pods struct {
	podless

	exits chan runtime.Exit

	mu     sync.Mutex
	home   *Node // nil: pods cannot be started
	made   int
	closed bool
	all    map[string]*pod
}

var _ runtime.Cluster = (*pods)(nil)

func newPods() *pods { return &pods{exits: make(chan runtime.Exit, 64), all: map[string]*pod{}} }

func (r *pods) runOn(n *Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.home = n
}

// Start implements runtime.Runtime.
func (r *pods) Start(ctx context.Context, s *v1alpha1.WangellService, hooks runtime.StartHooks) (runtime.Pod, error) {
	r.mu.Lock()
	n, id := r.home, fmt.Sprintf("%s-%d", s.Name, r.made)
	r.made++
	r.mu.Unlock()
	if n == nil {
		return runtime.Pod{}, fmt.Errorf("service %s: no node is chosen for its pods", s.Name)
	}
	phase := func(p runtime.Phase) {
		if hooks.Phase != nil {
			hooks.Phase(p, monotime.Now())
		}
	}
	has, err := n.Has(ctx, s.Spec.Image)
	if err == nil && !has {
		err = n.images.Pull(ctx, s.Spec.Image)
	}
	if err != nil {
		return runtime.Pod{}, fmt.Errorf("image %q on %s: %w: %w", s.Spec.Image, n.Name, runtime.ErrImage, err)
	}
	phase(runtime.PhaseImage)
	p, err := n.newPod(runtime.Pod{
		ID: id, Service: v1alpha1.KeyOf(s), SpecHash: v1alpha1.Hash(&s.Spec), Node: n.Name, NodeAddr: n.host.Addr,
	})
	if err != nil {
		return runtime.Pod{}, err
	}
	if err := r.launch(ctx, s, p, hooks, phase); err != nil {
		return runtime.Pod{}, errors.Join(fmt.Errorf("start pod %s on %s: %w", id, n.Name, err), p.close(ctx))
	}
	return p.Pod, nil
}

// launch starts the container of a pod that has its network.
func (r *pods) launch(ctx context.Context, s *v1alpha1.WangellService, p *pod, hooks runtime.StartHooks,
	phase func(runtime.Phase)) error {
	phase(runtime.PhaseSandbox)
	if hooks.Network != nil {
		hooks.Network(p.Pod)
	}
	if err := p.create(ctx, s.Spec.Image); err != nil {
		return err
	}
	phase(runtime.PhaseCreated)
	if err := p.task.Start(ctx); err != nil {
		return err
	}
	phase(runtime.PhaseStarted)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errors.New("the cluster is being removed")
	}
	p.Started = monotime.Now()
	r.all[p.ID] = p
	return nil
}

// Stop implements runtime.Runtime. It does not wait for the program to end by itself.
func (r *pods) Stop(ctx context.Context, id string, _ time.Duration) error {
	r.mu.Lock()
	p := r.all[id]
	delete(r.all, id)
	r.mu.Unlock()
	if p == nil {
		return nil
	}
	err := p.close(ctx)
	r.exits <- runtime.Exit{PodID: id, Service: p.Service, Code: 137, At: time.Now()}
	return err
}

// List implements runtime.Runtime.
func (r *pods) List(context.Context) ([]runtime.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []runtime.Pod
	for _, p := range r.all {
		list = append(list, p.Pod)
	}
	return list, nil
}

// Exits implements runtime.Runtime.
func (r *pods) Exits() <-chan runtime.Exit { return r.exits }

// Close implements runtime.Runtime: it ends all pods, and no others can be started.
func (r *pods) Close() error {
	r.mu.Lock()
	r.home, r.closed = nil, true
	all := r.all
	r.all = map[string]*pod{}
	r.mu.Unlock()
	var errs []error
	for _, p := range all {
		errs = append(errs, p.close(context.Background()))
	}
	return errors.Join(errs...)
}
