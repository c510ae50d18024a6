// SPDX-License-Identifier: Apache-2.0

// Package kube runs services on Kubernetes: it is a runtime.Cluster. A service's pods belong to a Deployment of the same
// name that internal/operator makes; this package alone writes how many replicas it has, as one number and in one
// request. The pods of a wake are made here and handed over to the Deployment later (see direct), because nothing else
// between "a pod is wanted" and "a pod is created" is ours to make quick.
//
// What becomes of pods is told twice: by the daemons of their nodes at once (ReportPod), and by the API up to a second later.
// The first is believed, and nobody is given a pod of which no daemon has told: without one, its node has no gate that
// could serve it. The second knows what no daemon does: a pod that has no node, an image that cannot be pulled, a pod
// that somebody deletes.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// Config configures a Runtime.
type Config struct {
	// Client reaches the API server; see NewClient. The Runtime does not close it.
	Client kubernetes.Interface
	// Namespace is the only one that is looked at; empty for all.
	Namespace string
	// Log may be nil.
	Log *slog.Logger
	// WithoutDaemons: no daemon tells of pods (tests do without), so that all is taken from the API, late as it is and
	// without what only a node knows: a pod's network namespace, and when it got it.
	WithoutDaemons bool
	// ThroughDeployment: no pod is made here, all come from the Deployment and its ReplicaSets. Wakes are slower, and
	// fewer requests are made for each.
	ThroughDeployment bool
	// Trouble tells what holds up a pod that is wanted (it fits on no node, say) although it may still come, and
	// later, with the zero value, that nothing does. It must be quick and not call the Runtime. It may be nil.
	Trouble func(runtime.Key, Trouble)
}

// Trouble is what holds up a pod.
type Trouble struct {
	// Reason is for users; empty if there is none.
	Reason string
	// Unschedulable: no node takes the pod.
	Unschedulable bool
}

// Runtime implements runtime.Cluster. Make one with Open.
type Runtime struct {
	cfg      Config
	log      *slog.Logger
	exits    *outbox[runtime.Exit]
	appeared *outbox[runtime.Pod]
	leaving  *outbox[string]
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	workers  sync.WaitGroup
	// deployments and sets have what the API server has of them, trimmed: a ReplicaSet has its number and who owns it only.
	deployments, sets cache.SharedIndexInformer

	mu       sync.Mutex // guards what follows, and every service and pod
	services map[runtime.Key]*service
	byUID    map[string]*pod
	nodes    map[string]bool // that have a daemon; nil while that is not known
	ended    endedPods
	changed  chan struct{} // closed and replaced when the set of pods changes
	closed   bool
}

var _ runtime.Cluster = (*Runtime)(nil)

// Open begins to watch pods, Deployments and ReplicaSets, and returns when all that there are are known.
func Open(ctx context.Context, cfg Config) (*Runtime, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Trouble == nil {
		cfg.Trouble = func(runtime.Key, Trouble) {}
	}
	r := &Runtime{
		cfg: cfg, log: cfg.Log, services: map[runtime.Key]*service{}, byUID: map[string]*pod{}, changed: make(chan struct{}),
		exits: newOutbox[runtime.Exit](), appeared: newOutbox[runtime.Pod](), leaving: newOutbox[string](),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if err := r.watch(ctx); err != nil {
		return nil, fmt.Errorf("watch pods, Deployments and ReplicaSets: %w", err)
	}
	return r, nil
}

// Exits implements runtime.Runtime.
func (r *Runtime) Exits() <-chan runtime.Exit { return r.exits.ch }

// Appeared implements runtime.Cluster.
func (r *Runtime) Appeared() <-chan runtime.Pod { return r.appeared.ch }

// Leaving implements runtime.Cluster.
func (r *Runtime) Leaving() <-chan string { return r.leaving.ch }

// Prepare implements runtime.Runtime. There is nothing to do: nodes fetch images themselves.
func (r *Runtime) Prepare(context.Context, *v1alpha1.WangellService, runtime.Progress) error {
	return nil
}

// Forget implements runtime.Runtime. Nothing is kept for a service but what is known of its Deployment and pods, and
// that goes with them.
func (r *Runtime) Forget(context.Context, runtime.Key) error { return nil }

// List implements runtime.Runtime. A pod that has no address yet has none here. The pods that it returns are not told
// by Appeared any more, but for one without an address.
func (r *Runtime) List(context.Context) ([]runtime.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []runtime.Pod
	for _, p := range r.byUID {
		if p.stopping || p.failed {
			continue
		}
		p.rt.Leaving = p.leaving
		out = append(out, p.rt)
		if p.rt.Addr.IsValid() && p.start == nil {
			p.claimed = true
			r.given(p)
		}
	}
	slices.SortFunc(out, func(a, b runtime.Pod) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// Versions implements runtime.Runtime.
func (r *Runtime) Versions(context.Context) map[string]string {
	v, err := r.cfg.Client.Discovery().ServerVersion()
	if err != nil {
		return map[string]string{"kubernetes": "unknown"}
	}
	return map[string]string{"kubernetes": strings.TrimPrefix(v.GitVersion, "v")}
}

// Close implements runtime.Runtime.
func (r *Runtime) Close() error {
	r.mu.Lock()
	again := r.closed
	r.closed = true
	r.mu.Unlock()
	if again {
		return nil
	}
	r.cancel()
	r.workers.Wait()
	r.exits.close()
	r.appeared.close()
	r.leaving.close()
	return nil
}

// Destroy implements runtime.Runtime: all Deployments of services are scaled to zero, and it returns when their pods
// are gone. The Deployments belong to the operator and stay.
func (r *Runtime) Destroy(ctx context.Context) error {
	r.mu.Lock()
	var all []*service
	for _, s := range r.services {
		s.want = 0
		all = append(all, s)
	}
	r.mu.Unlock()
	for _, s := range all {
		if err := r.write(ctx, s); err != nil {
			return err
		}
	}
	for {
		r.mu.Lock()
		left, changed := len(r.byUID), r.changed
		r.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d pods are not gone yet: %w", left, ctx.Err())
		}
	}
}

// touch tells who waits that the pods are others than before. The lock is held.
func (r *Runtime) touch() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// watch starts the informers and waits until they know everything.
func (r *Runtime) watch(ctx context.Context) error {
	var pods cache.SharedIndexInformer
	pods, r.deployments, r.sets = newInformers(r.cfg)
	if err := r.sets.AddIndexers(ownerIndex); err != nil {
		return err
	}
	var synced []cache.InformerSynced
	setSeen := func(any) { r.mu.Lock(); r.touch(); r.mu.Unlock() }
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandlerDetailedFuncs{
		pods: {
			AddFunc:    func(o any, before bool) { r.podSeen(o.(*corev1.Pod), before) },
			UpdateFunc: func(_, o any) { r.podSeen(o.(*corev1.Pod), false) },
			DeleteFunc: func(o any) { r.podDeleted(last[*corev1.Pod](o)) },
		},
		r.deployments: {
			AddFunc:    func(o any, _ bool) { r.deploymentSeen(o.(*appsv1.Deployment)) },
			UpdateFunc: func(_, o any) { r.deploymentSeen(o.(*appsv1.Deployment)) },
			DeleteFunc: func(o any) { r.deploymentDeleted(last[*appsv1.Deployment](o)) },
		},
		r.sets: {
			AddFunc: func(o any, _ bool) { setSeen(o) }, UpdateFunc: func(_, o any) { setSeen(o) }, DeleteFunc: setSeen,
		},
	} {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return err
		}
		synced = append(synced, registration.HasSynced)
		r.workers.Go(func() { informer.Run(r.ctx.Done()) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		r.cancel()
		r.workers.Wait()
		return context.Cause(ctx)
	}
	return nil
}

// last is the last known state of something that was deleted.
func last[T any](o any) T {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	return o.(T)
}

// requestTimeout bounds a request to the API server: one that is down must not hold up what else could be done.
const requestTimeout = 5 * time.Second
