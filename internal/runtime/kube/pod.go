// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

// daemonPatience is how long a pod that runs, as the API has it, may be unknown to all daemons before that is what holds
// up its Start.
const daemonPatience = 2 * time.Second

// pod is a pod of a service, from when it was first heard of until it is gone.
type pod struct {
	service   *service
	name      string
	node      string // to which it is bound, as the API has it; empty if it is not
	container string // name of the main container; empty if not known
	template  string // which of its Deployment's templates it is of; empty if not known
	rt        runtime.Pod
	grace     time.Duration // that of its spec
	inAPI     bool          // the API server has told of it
	alone     bool          // it has no controller, as the API has it: nobody else would end it
	claimed   bool          // somebody was given it: a Start, Appeared or List
	start     *start        // the Start that was given it, until that returns
	stopping  bool          // Stop was called, or its Start failed
	leaving   bool          // somebody takes it away
	failed    bool          // it will never run again: evicted, say
	exited    bool          // its end was told
	ended     *exitCode     // its process ended before somebody was given it
	gone      chan struct{} // closed when nothing is left of it
}

// stays tells whether the pod is none of those that go.
func (p *pod) stays() bool { return !p.stopping && !p.leaving && !p.failed }

// podOf returns the pod with this UID, which may be new; nil if it is gone already. The lock is held.
func (r *Runtime) podOf(uid, namespace, serviceName, name string) *pod {
	if p := r.byUID[uid]; p != nil {
		return p
	}
	if r.ended.has(uid) {
		return nil
	}
	key := runtime.Key(namespace + "/" + serviceName)
	s := r.of(key, namespace, serviceName)
	p := &pod{
		service: s, name: name, container: s.container, gone: make(chan struct{}),
		grace: v1alpha1.DefaultTerminationGracePeriodSeconds * time.Second,
		rt:    runtime.Pod{ID: uid, Service: key},
	}
	r.byUID[uid], s.pods[uid] = p, p
	r.touch()
	return p
}

// exitCode is how a process ended.
type exitCode struct {
	code    uint32
	crashed bool
}

// main tells whether a container is the one that listens.
func (p *pod) main(container string) bool {
	return p.container == "" || container == "" || container == p.container
}

// drop forgets a pod of which nothing is left. The lock is held.
func (r *Runtime) drop(p *pod) {
	if r.byUID[p.rt.ID] != p {
		return
	}
	delete(r.byUID, p.rt.ID)
	delete(p.service.pods, p.rt.ID)
	r.ended.add(p.rt.ID, time.Now())
	if st := p.start; st != nil {
		p.leaving = true
		st.fail(retryable{"pod " + p.name + " is gone while it starts"})
	}
	r.exit(p, unknownCode, false)
	close(p.gone)
	r.trouble(p.service, trouble{})
	r.lostDirect(p)
	r.touch()
	r.tidy(p.service)
	r.dropService(p.service)
}

// network takes that the pod has an address. before: it was there before this process, and is for List to tell. The
// lock is held.
func (r *Runtime) network(p *pod, from runtime.Pod, at monotime.Time, before bool) {
	if from.Addr.IsValid() {
		p.rt.Addr = from.Addr
	}
	if from.Netns != "" {
		p.rt.Netns = from.Netns
	}
	if from.Node != "" {
		p.rt.Node, p.rt.NodeAddr = from.Node, from.NodeAddr
	}
	if from.SpecHash != "" {
		p.rt.SpecHash = from.SpecHash
	}
	if p.stopping || p.failed || p.claimed || before || !p.rt.Addr.IsValid() {
		return
	}
	p.claimed = true
	s := p.service
	// One that leaves may have connections, of which whoever has just begun to lead must know.
	if p.rt.Leaving = p.leaving; p.leaving || len(s.starts) == 0 {
		r.appeared.put(p.rt)
		r.given(p)
		return
	}
	st := s.starts[0]
	s.starts = s.starts[1:]
	p.start, st.pod = st, p
	st.tell(step{phase: runtime.PhaseSandbox, at: at, pod: p.rt})
	if p.ended != nil {
		st.tell(step{exited: true})
	}
	r.trouble(s, trouble{})
}

// given takes that somebody was given a pod: now its end can be told, if it has come already. The lock is held.
func (r *Runtime) given(p *pod) {
	if p.ended != nil {
		r.exit(p, p.ended.code, p.ended.crashed)
	}
}

// stepped takes that the pod's main container was created or started. The lock is held.
func (r *Runtime) stepped(p *pod, phase runtime.Phase, at monotime.Time) {
	if phase == runtime.PhaseStarted && p.rt.Started == 0 {
		p.rt.Started = at
	}
	if p.start != nil {
		p.start.tell(step{phase: phase, at: at, pod: p.rt})
	} else if phase == runtime.PhaseStarted {
		r.trouble(p.service, trouble{})
	}
}

// unknownCode is the exit status of a process that nobody saw end: that of SIGKILL.
const unknownCode = 128 + 9

// exit tells that the pod's process ended, once a pod; crashed if it did so by itself, so that the end of its log
// matters. The lock is held.
func (r *Runtime) exit(p *pod, code uint32, crashed bool) {
	switch {
	case p.exited:
		return
	case p.start != nil || !p.claimed: // told when somebody has been given the pod, if that ever happens
		p.ended = &exitCode{code, crashed}
		return
	}
	p.exited = true
	e := runtime.Exit{PodID: p.rt.ID, Service: p.rt.Service, Code: code, At: time.Now()}
	if !crashed || r.closed {
		r.exits.put(e)
		return
	}
	r.workers.Go(func() {
		e.LogTail = r.logTail(r.ctx, p.service.namespace, p.name, p.container)
		r.exits.put(e)
	})
}

// ReportPod implements runtime.Cluster.
func (r *Runtime) ReportPod(seen runtime.PodReport) {
	namespace, name := split(seen.Pod.Service)
	if seen.Pod.ID == "" || name == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.byUID[seen.Pod.ID]
	if p == nil && seen.Event >= runtime.PodContainerExited {
		return // it is gone, or was never anybody's
	}
	if p == nil {
		if p = r.podOf(seen.Pod.ID, namespace, name, seen.Name); p == nil {
			return
		}
	}
	if seen.Event != runtime.PodNetworkGone {
		r.network(p, seen.Pod, seen.At, false)
	}
	if seen.Event != runtime.PodNetworkReady && seen.Event != runtime.PodNetworkGone && !p.main(seen.Container) {
		return
	}
	switch seen.Event {
	case runtime.PodContainerCreated:
		r.stepped(p, runtime.PhaseCreated, seen.At)
	case runtime.PodContainerStarted:
		r.stepped(p, runtime.PhaseStarted, seen.At)
	case runtime.PodContainerExited:
		r.processEnded(p, seen.Code)
	case runtime.PodNetworkGone:
		// A sandbox may be made anew for the same pod. Then its process ended, and the pod is still there.
		if p.stopping || p.leaving {
			r.drop(p)
		} else {
			r.processEnded(p, unknownCode)
		}
	}
}

// processEnded takes that the main container's process ended. The lock is held.
func (r *Runtime) processEnded(p *pod, code uint32) {
	p.rt.Started = 0
	if p.start != nil {
		p.start.tell(step{exited: true})
	}
	r.exit(p, code, !p.stopping && !p.leaving)
}

// split parts a key into namespace and name.
func split(k runtime.Key) (namespace, name string) {
	i := slices.Index([]byte(k), '/')
	if i < 0 {
		return "", ""
	}
	return string(k[:i]), string(k[i+1:])
}

// podSeen takes a pod as the API server has it. before: it was there before this process.
func (r *Runtime) podSeen(o *corev1.Pod, before bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.podOf(string(o.UID), o.Namespace, o.Labels[v1alpha1.LabelService], o.Name)
	if p == nil {
		return
	}
	if c := o.Annotations[v1alpha1.AnnotationContainer]; c != "" {
		p.container = c
	}
	if port, err := strconv.ParseUint(o.Annotations[v1alpha1.AnnotationTargetPort], 10, 16); err == nil {
		p.rt.Port = uint16(port)
	}
	if g := o.Spec.TerminationGracePeriodSeconds; g != nil {
		p.grace = time.Duration(*g) * time.Second
	}
	p.inAPI, p.alone = true, metav1.GetControllerOfNoCopy(o) == nil
	p.node, p.template = o.Spec.NodeName, o.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	r.watchNode(p)
	known := apiPod(o, p.container)
	if p.rt.SpecHash == "" {
		p.rt.SpecHash = known.SpecHash
	}
	switch {
	case o.DeletionTimestamp != nil:
		r.left(p)
	case o.Status.Phase == corev1.PodFailed || o.Status.Phase == corev1.PodSucceeded:
		r.failedForGood(p, o)
		return
	}
	if code, ended := endedWith(o, p.container); ended {
		r.processEnded(p, code)
	}
	if before && p.ended == nil {
		p.rt.Started = known.Started
	}
	switch {
	case !known.Addr.IsValid():
	case r.cfg.WithoutDaemons:
		r.network(p, known, monotime.Now(), before)
		if p.rt.Started == 0 && known.Started != 0 && !p.exited && p.ended == nil {
			r.stepped(p, runtime.PhaseStarted, monotime.Now()) // the API's time is exact to a second only
		}
	case !p.claimed && known.Started != 0:
		r.after(daemonPatience, func() { r.untold(p, known.Node) })
	}
	r.hold(p, o)
	if p.alone {
		r.foundDirect(p, p.template, before)
	}
}

// untold takes that no daemon has told of a pod that runs.
func (r *Runtime) untold(p *pod, node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := p.service; r.byUID[p.rt.ID] == p && !p.claimed && !p.stopping && !p.leaving && len(s.starts) > 0 {
		s.starts[0].held = fmt.Sprintf("pod %s runs on node %s, but no daemon has told of it: look at the log of the daemon there", p.name, node)
		r.trouble(s, trouble{reason: s.starts[0].held})
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

// left takes that somebody takes a pod away. The lock is held.
func (r *Runtime) left(p *pod) {
	if p.leaving {
		return
	}
	p.leaving = true
	r.lostDirect(p)
	if p.stopping {
		return
	}
	if p.start != nil {
		p.start.fail(retryable{"pod " + p.name + " was deleted while it started"})
		return
	}
	if p.claimed {
		r.leaving.put(p.rt.ID)
	}
}

// failedForGood takes a pod that will not run again; its ReplicaSet makes another one. The lock is held.
func (r *Runtime) failedForGood(p *pod, o *corev1.Pod) {
	if p.failed {
		return
	}
	p.failed = true
	r.lostDirect(p)
	reason := o.Status.Message
	if reason == "" {
		reason = o.Status.Reason
	}
	if p.start != nil {
		p.start.fail(retryable{"pod " + p.name + " failed: " + reason})
	}
	code, ended := endedWith(o, p.container)
	if !ended {
		code = unknownCode
	}
	r.exit(p, code, false)
}

func (r *Runtime) podDeleted(o *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.byUID[string(o.UID)]
	if p == nil {
		return
	}
	if code, ended := endedWith(o, p.container); ended {
		r.exit(p, code, false)
	}
	r.drop(p)
}

// hold takes what holds a pod up. The lock is held.
func (r *Runtime) hold(p *pod, o *corev1.Pod) {
	s := p.service
	st := p.start
	if st == nil && !p.claimed && len(s.starts) > 0 {
		st = s.starts[0]
	}
	if p.stopping || p.leaving || p.rt.Started != 0 || p.ended != nil {
		return
	}
	t := troubleOf(o, p.container)
	switch {
	case t.reason == "":
	case st == nil:
		r.trouble(s, t)
	case t.fatal:
		if p.start == nil { // no daemon told of it: this pod is what the Start gets
			s.starts = s.starts[1:]
			p.start, st.pod, p.claimed = st, p, true
		}
		st.fail(t)
	default:
		st.held = t.reason
		r.trouble(s, t)
	}
}

// trouble tells what holds up a service's pods. The lock is held.
func (r *Runtime) trouble(s *service, t trouble) {
	if s.troubled != t {
		s.troubled = t
		r.cfg.Trouble(s.key, Trouble{Reason: t.reason, Unschedulable: t.unschedulable})
	}
}

// removedLog is how kubelet begins a log, in place of an error, of a container that it has removed already.
const removedLog = "unable to retrieve container logs"

// logTail is the end of what a pod's process wrote; empty if it cannot be had.
func (r *Runtime) logTail(ctx context.Context, namespace, name, container string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var text []byte
	// If kubelet has started the container again already, the end of interest is that of the one before.
	for _, previous := range []bool{true, false} {
		lines := int64(64)
		options := &corev1.PodLogOptions{Container: container, TailLines: &lines, Previous: previous}
		var err error
		text, err = r.cfg.Client.CoreV1().Pods(namespace).GetLogs(name, options).DoRaw(ctx)
		if err == nil && !bytes.HasPrefix(text, []byte(removedLog)) {
			break
		}
		r.log.Debug("the end of a log cannot be had", "pod", namespace+"/"+name, "previous", previous, "error", err)
		text = nil
	}
	const most = 2 << 10
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return string(text)
}
