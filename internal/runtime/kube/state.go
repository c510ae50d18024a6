// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/tasks"
	"wangell.loutres.me/internal/runtime"
)

// Runtime implements runtime.Cluster. Create one with Open.
type Runtime struct {
	cfg      Config
	opened   time.Time // when it began to watch
	log      *slog.Logger
	api      requests
	exits    *queue[runtime.Exit]
	appeared *queue[runtime.Pod]
	leaving  *queue[runtime.Leave]
	ending   *queue[runtime.Ending]
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	// resizes has the UIDs of pods whose requests must be checked.
	resizes       workqueue.TypedDelayingInterface[string]
	resizeBackoff workqueue.TypedRateLimiter[string]
	// endWrites ends all writes to the API server.
	endWrites context.CancelFunc
	// explaining holds an element for each request for the Events of a pod.
	explaining chan struct{}
	workers    tasks.Group
	factory    informers.SharedInformerFactory
	handlers   []func() error // remove the handlers from the informers
	due        workqueue.TypedDelayingInterface[v1alpha1.Key]
	backoff    workqueue.TypedRateLimiter[v1alpha1.Key]

	mu       sync.Mutex // guards what follows, and every service, pod and waiter
	services map[v1alpha1.Key]*service
	byUID    map[string]*pod
	nodes    map[string]bool // nodes with a daemon; nil while unknown
	// hostnames are the values of the label kubernetes.io/hostname by node; preferred are the nodes that have a service's
	// images.
	hostnames map[string]string
	preferred map[v1alpha1.Key][]string
	pulls     *pulls
	resizing  resizing
	gone      tombstones
	ended     endedLogs
	// unconfirmed are daemons' reports of pods that the API server has not reported yet; refused is when one was last
	// ignored because it contradicts the API server.
	unconfirmed unconfirmed
	refused     time.Time
	// starts counts the Starts under way, handOvers the sequences that hand pods over.
	starts, handOvers int
	changed           chan struct{} // closed and replaced when any observation changes
	closed            bool
	retired           bool // writing has ended
}

// ensureService returns the service with this key, which may be new. The lock is held.
func (r *Runtime) ensureService(key v1alpha1.Key) *service {
	s := r.services[key]
	if s == nil {
		namespace, name := key.Split()
		s = &service{
			ident: ident{key, namespace, name}, pods: map[string]*pod{},
			machine: machine{throughDeployment: r.cfg.ThroughDeployment, written: unknown}, writing: make(chan struct{}, 1),
		}
		r.services[key] = s
	}
	return s
}

// dropService forgets a service once nothing of it is left. The lock is held.
func (r *Runtime) dropService(s *service) {
	if s.machine.uid == "" && len(s.pods) == 0 && len(s.waiters) == 0 && len(s.sets) == 0 && len(s.writing) == 0 {
		delete(r.services, s.key)
	}
}

// ensurePod returns the pod with this UID, which may be new; nil if it is gone already. The lock is held.
func (r *Runtime) ensurePod(uid string, service v1alpha1.Key, name string) *pod {
	if p := r.byUID[uid]; p != nil {
		return p
	}
	if r.gone.has(uid) {
		return nil
	}
	s := r.ensureService(service)
	p := &pod{
		service: s, name: name, container: s.container, gone: make(chan struct{}),
		logged: make(chan struct{}),
		grace:  v1alpha1.DefaultTerminationGracePeriodSeconds * time.Second,
		rt:     runtime.Pod{ID: uid, Name: name, Service: service},
	}
	r.byUID[uid], s.pods[uid] = p, p
	r.notify()
	return p
}

// notify wakes whatever waits for a change. The lock is held.
func (r *Runtime) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// observe returns what the machine of a service decides by. The lock is held.
func (r *Runtime) observe(s *service, now time.Time) observation {
	o := s.observe(now)
	o.crowded = r.starts >= crowdedStarts || r.handOvers >= mostHandOvers
	return o
}

// schedule schedules maintenance for when it is due. The lock is held.
func (r *Runtime) schedule(s *service) {
	now := time.Now()
	if what, at := s.machine.due(r.observe(s, now)); what != noTask && !r.retired {
		r.due.AddAfter(s.key, max(at.Sub(now), s.notBefore.Sub(now), 0))
	}
}

// after runs f later, unless the Runtime is closed by then. The lock is held.
func (r *Runtime) after(delay time.Duration, f func()) {
	if r.closed {
		return
	}
	r.workers.Go(func() {
		t := time.NewTimer(delay)
		defer t.Stop()
		select {
		case <-t.C:
			f()
		case <-r.ctx.Done():
		}
	})
}

// lastState returns the last known state of an object that was deleted.
func lastState[T any](o any) T {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	return o.(T)
}

// resizing is whether pods can be resized.
type resizing struct {
	why   string    // why not; empty if they can, or before the first attempt
	until time.Time // when the next attempt is due
}
