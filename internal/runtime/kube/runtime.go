// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

var _ runtime.Cluster = (*Runtime)(nil)

// Open starts to watch pods, Deployments and ReplicaSets. It returns once the caches have synced.
func Open(ctx context.Context, cfg Config) (*Runtime, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Trouble == nil {
		cfg.Trouble = func(v1alpha1.Key, Trouble) {}
	}
	if cfg.Reserved == nil {
		cfg.Reserved = func(v1alpha1.Key) {}
	}
	r := &Runtime{
		cfg: cfg, log: cfg.Log, opened: time.Now(),
		exits: newQueue[runtime.Exit](), appeared: newQueue[runtime.Pod](), leaving: newQueue[runtime.Leave](),
		ending:        newQueue[runtime.Ending](),
		due:           workqueue.NewTypedDelayingQueue[v1alpha1.Key](),
		backoff:       workqueue.NewTypedItemExponentialFailureRateLimiter[v1alpha1.Key](firstRetry, lastRetry),
		resizes:       workqueue.NewTypedDelayingQueue[string](),
		resizeBackoff: workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastResizeRetry),
		services:      map[v1alpha1.Key]*service{}, byUID: map[string]*pod{}, changed: make(chan struct{}),
		explaining: make(chan struct{}, maxExplaining), pulls: newPulls(),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	writes, endWrites := context.WithCancel(r.ctx)
	r.api, r.endWrites = requests{client: cfg.Client, log: cfg.Log, writes: writes}, endWrites
	if err := r.watch(ctx); err != nil {
		return nil, fmt.Errorf("watch pods, Deployments and ReplicaSets: %w", errors.Join(err, r.Close()))
	}
	r.workers.Go(r.maintain) // not earlier: until ReplicaSets are listed, a Deployment seems to have none
	r.workers.Go(r.reserve)
	r.workers.Go(r.sweepPulls)
	return r, nil
}

// watch starts the informers and waits until they have delivered all existing objects.
func (r *Runtime) watch(ctx context.Context) error {
	r.factory = newFactory(r.cfg)
	deployments := r.cfg.Deployments
	if deployments == nil {
		deployments = r.factory.Apps().V1().Deployments().Informer()
	}
	var synced []cache.InformerSynced
	for _, w := range []struct {
		informer Informer
		handler  cache.ResourceEventHandlerDetailedFuncs
	}{
		{r.factory.Core().V1().Pods().Informer(), cache.ResourceEventHandlerDetailedFuncs{
			AddFunc:    func(o any, initial bool) { r.podSeen(o.(*corev1.Pod), initial) },
			UpdateFunc: func(_, o any) { r.podSeen(o.(*corev1.Pod), false) },
			DeleteFunc: func(o any) { r.podDeleted(lastState[*corev1.Pod](o)) },
		}},
		{deployments, cache.ResourceEventHandlerDetailedFuncs{
			AddFunc:    func(o any, _ bool) { r.deploymentSeen(o.(*appsv1.Deployment)) },
			UpdateFunc: func(_, o any) { r.deploymentSeen(o.(*appsv1.Deployment)) },
			DeleteFunc: func(o any) { r.deploymentDeleted(lastState[*appsv1.Deployment](o)) },
		}},
		{r.factory.Apps().V1().ReplicaSets().Informer(), cache.ResourceEventHandlerDetailedFuncs{
			AddFunc:    func(o any, _ bool) { r.setSeen(o.(*appsv1.ReplicaSet)) },
			UpdateFunc: func(_, o any) { r.setSeen(o.(*appsv1.ReplicaSet)) },
			DeleteFunc: func(o any) { r.setDeleted(lastState[*appsv1.ReplicaSet](o)) },
		}},
	} {
		registration, err := w.informer.AddEventHandler(w.handler)
		if err != nil {
			return err
		}
		r.handlers = append(r.handlers, func() error { return w.informer.RemoveEventHandler(registration) })
		synced = append(synced, registration.HasSynced)
	}
	r.factory.Start(r.ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return context.Cause(ctx)
	}
	return nil
}

// Exits implements runtime.Runtime.
func (r *Runtime) Exits() <-chan runtime.Exit { return r.exits.ch }

// Appeared implements runtime.Cluster.
func (r *Runtime) Appeared() <-chan runtime.Pod { return r.appeared.ch }

// Leaving implements runtime.Cluster.
func (r *Runtime) Leaving() <-chan runtime.Leave { return r.leaving.ch }

// Ending implements runtime.Runtime.
func (r *Runtime) Ending() <-chan runtime.Ending { return r.ending.ch }

// Rolling implements runtime.Cluster.
func (r *Runtime) Rolling(k v1alpha1.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.services[k]
	return s != nil && s.rolling()
}

// Prepare implements runtime.Runtime. It does nothing: nodes pull images themselves.
func (r *Runtime) Prepare(context.Context, *v1alpha1.WangellService, runtime.Progress) error {
	return nil
}

// Forget implements runtime.Runtime. It does nothing: the state of a service disappears with its Deployment and
// pods.
func (r *Runtime) Forget(context.Context, v1alpha1.Key) error { return nil }

// Stop implements runtime.Runtime. It returns when the pod is gone. grace is rounded up to seconds.
func (r *Runtime) Stop(ctx context.Context, podID string, grace time.Duration) error {
	r.mu.Lock()
	p := r.byUID[podID]
	single := p != nil && (p.owner == ownerDeployment || p.service.machine.single)
	r.mu.Unlock()
	switch {
	case p == nil:
		return nil
	case single:
		return r.stopSingle(ctx, p, grace)
	}
	return r.stopReplica(ctx, p, grace)
}

// List implements runtime.Runtime. Appeared does not deliver the returned pods again, except those without an
// address.
func (r *Runtime) List(context.Context) ([]runtime.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []runtime.Pod
	for _, p := range r.byUID {
		if p.is(podStopping | podFailed) {
			continue
		}
		p.rt.Leaving = p.is(podLeaving)
		out = append(out, p.rt)
		if p.rt.Addr.IsValid() && p.waiter == nil {
			p.set(podDelivered)
			r.deliverKeptExit(p)
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

// Retire ends all writes, because another controller will lead: requests under way are cancelled, and no further one
// is made. Reports of the API server and of daemons are still delivered, and Starts whose pods exist go on. Close
// ends the rest.
func (r *Runtime) Retire() {
	r.mu.Lock()
	r.retired = true
	r.mu.Unlock()
	r.endWrites()
	r.due.ShutDown()
	r.resizes.ShutDown()
}

// Close implements runtime.Runtime.
func (r *Runtime) Close() error {
	r.mu.Lock()
	again := r.closed
	r.closed, r.retired = true, true
	r.mu.Unlock()
	if again {
		return nil
	}
	r.cancel()
	var errs []error
	for _, remove := range r.handlers {
		errs = append(errs, remove())
	}
	r.factory.Shutdown()
	r.due.ShutDown()
	r.resizes.ShutDown()
	r.workers.Stop()
	r.exits.close()
	r.appeared.close()
	r.leaving.close()
	r.ending.close()
	return errors.Join(errs...)
}

// Destroy implements runtime.Runtime: it scales the Deployments of all services to zero, and returns when their pods
// are gone. The Deployments belong to the operator and stay.
func (r *Runtime) Destroy(ctx context.Context) error {
	r.mu.Lock()
	var all []*service
	for _, s := range r.services {
		s.machine.want = 0
		all = append(all, s)
	}
	r.mu.Unlock()
	for _, s := range all {
		if err := r.drive(ctx, s, unwritten); err != nil {
			return err
		}
	}
	r.mu.Lock()
	for _, p := range r.byUID {
		if p.owner == ownerDeployment || p.service.machine.single {
			r.workers.Go(func() { _ = r.stopSingle(ctx, p, p.grace) })
		}
	}
	r.mu.Unlock()
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
