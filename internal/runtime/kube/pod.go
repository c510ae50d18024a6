// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/reservation"
	"wangell.loutres.me/internal/runtime"
)

// ident names a service and its Deployment.
type ident struct {
	key             v1alpha1.Key
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
	emptySince time.Time           // when its last pod went
	reported   trouble             // as last reported
	told       reservation.Summary // likewise
	writing    chan struct{}       // holds an element while the machine is being driven
	notBefore  time.Time           // of the next try after a failed one
}

// owner is the controller of a pod, as reported by the API server.
type owner uint8

const (
	ownerNone owner = iota // nothing else would end it
	ownerReplicaSet
	ownerDeployment // a single pod: see single.go
	ownerOther
)

// ownerOf returns the owner of a pod that the API server has reported.
func ownerOf(o *corev1.Pod) owner {
	switch controllerKind(o) {
	case "":
		return ownerNone
	case "ReplicaSet":
		return ownerReplicaSet
	case "Deployment":
		return ownerDeployment
	}
	return ownerOther
}

// podFlags are further facts about a pod, independent of each other.
type podFlags uint16

const (
	podDelivered podFlags = 1 << iota // returned to the caller by Start, Appeared or List
	podStopping                       // Stop was called, or its Start failed
	podLeaving                        // it is being deleted by others
	podFailed                         // it will never run again: evicted, for example
	podExited                         // its end was delivered
	podInherited                      // it existed before this process
	podCrashed                        // its end was delivered, and the process had ended by itself
	podExplained                      // its end was delivered with the cause
	podSeenHere                       // the API server has reported it
)

// is reports whether any of the given flags is set.
func (p *pod) is(f podFlags) bool { return p.flags&f != 0 }

func (p *pod) set(f podFlags) { p.flags |= f }

func (p *pod) unset(f podFlags) { p.flags &^= f }

// pod is a pod of a service, from the first report of it until it is gone.
type pod struct {
	service   *service
	name      string
	node      string // the node that it is bound to, by the API; empty if it is not bound
	container string // name of the main container; empty if not known
	template  string // its label pod-template-hash; empty if not known
	rt        runtime.Pod
	grace     time.Duration // from its spec

	owner  owner
	flags  podFlags
	waiter *waiter     // the Start that it was assigned to, until that returns
	exit   *exitStatus // its process ended before the pod was delivered
	// lending is the state of its requests while it is frozen.
	lending lending
	gone    chan struct{}
	// logged is closed once the end of the main container's log is known.
	logged chan struct{}
}

// exitStatus is how a process ended.
type exitStatus struct {
	code    uint32
	crashed bool // it ended by itself
	cause   cause
}

// over reports whether the process of the main container has ended.
func (p *pod) over() bool { return p.is(podExited) || p.exit != nil }

// stays reports whether nothing ends the pod.
func (p *pod) stays() bool { return !p.is(podStopping | podLeaving | podFailed) }

// isMain reports whether a container is the one that listens.
func (p *pod) isMain(container string) bool {
	return p.container == "" || container == "" || container == p.container
}

// held is the number of delivered pods that stay.
func (s *service) held() int {
	n := 0
	for _, p := range s.pods {
		if p.stays() && p.is(podDelivered) && p.owner != ownerDeployment {
			n++
		}
	}
	return n
}

// wantMore makes room for one more Start. The lock is held.
func (s *service) wantMore() { s.machine.wantMore(s.held(), len(s.waiters)) }

// wantLess lowers the wanted number before a pod or a waiter is removed. The lock is held.
func (s *service) wantLess() bool { return s.machine.wantLess(s.held(), len(s.waiters)) }

// observe returns the input of the machine. The lock is held.
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

// waiter is a Start under way.
type waiter struct {
	pod    *pod   // nil until a pod is assigned
	heldUp string // why its pod does not start, although it still may
	said   string // what was last said of what it waits for
	steps  chan step
	err    chan error
}

// step is an event of a Start's pod.
type step struct {
	phase  runtime.Phase
	at     monotime.Time
	pod    runtime.Pod
	exited bool   // its process ended
	waits  string // what the start waits for, of a step with nothing else
}

func newWaiter() *waiter {
	// There are fewer kinds of steps than this channel holds; repeated ones may be dropped.
	return &waiter{steps: make(chan step, 16), err: make(chan error, 1)}
}

// report never blocks.
func (w *waiter) report(s step) {
	select {
	case w.steps <- s:
	default:
	}
}

// hold notes why the pod does not start although it still may.
func (w *waiter) hold(why string) {
	w.heldUp = why
	w.say(why)
}

// say reports what the start waits for, if that has changed.
func (w *waiter) say(what string) {
	if w.said != what {
		w.said = what
		w.report(step{waits: what})
	}
}

// fail never blocks. The first error counts.
func (w *waiter) fail(err error) {
	select {
	case w.err <- err:
	default:
	}
}
