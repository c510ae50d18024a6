// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// Runtime implements runtime.Cluster. Create one with Open.
type Runtime struct {
	cfg      Config
	log      *slog.Logger
	api      requests
	exits    *queue[runtime.Exit]
	appeared *queue[runtime.Pod]
	leaving  *queue[string]
	ending   *queue[runtime.Ending]
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	// endWrites ends all writes to the API server.
	endWrites context.CancelFunc
	workers   sync.WaitGroup
	factory   informers.SharedInformerFactory
	handlers  []func() error // remove the handlers from the informers
	due       workqueue.TypedDelayingInterface[runtime.Key]
	backoff   workqueue.TypedRateLimiter[runtime.Key]

	mu       sync.Mutex // guards what follows, and every service, pod and waiter
	services map[runtime.Key]*service
	byUID    map[string]*pod
	nodes    map[string]bool // those that have a daemon; nil while that is not known
	// hostnames are the values of the label kubernetes.io/hostname by node; preferred are the nodes that have a service's
	// images.
	hostnames map[string]string
	preferred map[runtime.Key][]string
	pulls     pulls
	gone      tombstones
	changed   chan struct{} // closed and replaced when anything observed changes
	closed    bool
	retired   bool // nothing is written any more
}

// ident names a service and its Deployment.
type ident struct {
	key             runtime.Key
	namespace, name string
}

// service is what is known of one service.
type service struct {
	ident
	machine    machine
	deployment *appsv1.Deployment // as the cache has it; nil if there is none
	sets       map[types.UID]*appsv1.ReplicaSet
	container  string    // name of the main container; empty if not known
	waiters    []*waiter // Starts without a pod, oldest first
	pods       map[string]*pod
	emptySince time.Time     // when its last pod went
	reported   trouble       // as last reported
	writing    chan struct{} // holds an element while the machine is being driven
	notBefore  time.Time     // of the next try after a failed one
}

// pod is a pod of a service, from the first report of it until it is gone.
type pod struct {
	service   *service
	name      string
	node      string // that it is bound to, as the API has it; empty if it is not
	container string // name of the main container; empty if not known
	template  string // its label pod-template-hash; empty if not known
	rt        runtime.Pod
	grace     time.Duration // that of its spec

	inAPI     bool        // the API server has reported it
	alone     bool        // it has no controller, as the API has it: nothing else would end it
	set       bool        // its controller is a ReplicaSet, as the API has it
	single    bool        // its controller is the Deployment, as the API has it: see single.go
	delivered bool        // returned to the caller by Start, Appeared or List
	waiter    *waiter     // the Start that it was assigned to, until that returns
	stopping  bool        // Stop was called, or its Start failed
	leaving   bool        // it is being deleted by others
	failed    bool        // it will never run again: evicted, for example
	exited    bool        // its end was delivered
	exit      *exitStatus // its process ended before the pod was delivered
	gone      chan struct{}
}

// exitStatus is how a process ended.
type exitStatus struct {
	code    uint32
	crashed bool // it ended by itself
}

// stays reports whether nothing ends the pod.
func (p *pod) stays() bool { return !p.stopping && !p.leaving && !p.failed }

// isMain reports whether a container is the one that listens.
func (p *pod) isMain(container string) bool {
	return p.container == "" || container == "" || container == p.container
}

// ensureService returns the service with this key, which may be new. The lock is held.
func (r *Runtime) ensureService(key runtime.Key) *service {
	s := r.services[key]
	if s == nil {
		namespace, name := split(key)
		s = &service{
			ident: ident{key, namespace, name}, pods: map[string]*pod{},
			machine: machine{throughDeployment: r.cfg.ThroughDeployment, written: unknown}, writing: make(chan struct{}, 1),
		}
		r.services[key] = s
	}
	return s
}

// dropService forgets a service of which nothing is left. The lock is held.
func (r *Runtime) dropService(s *service) {
	if s.machine.uid == "" && len(s.pods) == 0 && len(s.waiters) == 0 && len(s.sets) == 0 && len(s.writing) == 0 {
		delete(r.services, s.key)
	}
}

// ensurePod returns the pod with this UID, which may be new; nil if it is gone already. The lock is held.
func (r *Runtime) ensurePod(uid string, service runtime.Key, name string) *pod {
	if p := r.byUID[uid]; p != nil {
		return p
	}
	if r.gone.has(uid) {
		return nil
	}
	s := r.ensureService(service)
	p := &pod{
		service: s, name: name, container: s.container, gone: make(chan struct{}),
		grace: v1alpha1.DefaultTerminationGracePeriodSeconds * time.Second,
		rt:    runtime.Pod{ID: uid, Name: name, Service: service},
	}
	r.byUID[uid], s.pods[uid] = p, p
	r.notify()
	return p
}

// held is the number of pods that stay and were delivered.
func (s *service) held() int {
	n := 0
	for _, p := range s.pods {
		if p.stays() && p.delivered && !p.single {
			n++
		}
	}
	return n
}

// wantMore makes room for one more Start. The lock is held.
func (s *service) wantMore() { s.machine.wantMore(s.held(), len(s.waiters)) }

// wantLess lowers the wanted number before a pod or a waiter is removed. The lock is held.
func (s *service) wantLess() bool { return s.machine.wantLess(s.held(), len(s.waiters)) }

// observe returns what the machine decides on. The lock is held.
func (s *service) observe(now time.Time) observation {
	o := observation{now: now, pods: len(s.pods), emptySince: s.emptySince, starting: len(s.waiters) > 0}
	if d := s.deployment; d != nil && string(d.UID) == s.machine.uid &&
		parseVersion(d.ResourceVersion) >= s.machine.version {
		o.deployment = d
	}
	for _, set := range s.sets {
		if string(controllerOf(set)) == s.machine.uid {
			o.sets = append(o.sets, set)
		}
	}
	for _, p := range s.pods {
		o.starting = o.starting || p.waiter != nil
	}
	return o
}

// rolling reports whether the Deployment is replacing pods: those that stay were created from several templates.
func (s *service) rolling() bool {
	template := ""
	for _, p := range s.pods {
		switch {
		case !p.stays() || p.template == "" || p.template == template:
		case template != "":
			return true
		default:
			template = p.template
		}
	}
	return false
}

// notify wakes whatever waits for a change. The lock is held.
func (r *Runtime) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// schedule has maintenance done when it is due. The lock is held.
func (r *Runtime) schedule(s *service) {
	now := time.Now()
	if what, at := s.machine.due(s.observe(now)); what != noTask && !r.retired {
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

// split parts a key into namespace and name; both are empty if it has no slash.
func split(k runtime.Key) (namespace, name string) {
	namespace, name, found := strings.Cut(string(k), "/")
	if !found {
		return "", ""
	}
	return namespace, name
}

// lastState returns the last known state of an object that was deleted.
func lastState[T any](o any) T {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	return o.(T)
}
