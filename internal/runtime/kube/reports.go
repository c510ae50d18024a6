// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// daemonPatience is how long a pod that runs according to the API may be unreported by daemons before its Start
// counts as delayed by this.
const daemonPatience = 2 * time.Second

// refusalGap is the shortest time between two log lines about reports that are ignored.
const refusalGap = 10 * time.Second

// ReportPod implements runtime.Cluster. A report counts once the API server has the pod, as one of that service and
// bound to the node whose daemon reports it; until then it waits (unconfirmed.go).
func (r *Runtime) ReportPod(report runtime.PodReport) {
	if report.Pod.ID == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch p := r.byUID[report.Pod.ID]; {
	case p == nil && r.gone.has(report.Pod.ID):
	case p == nil || p.node == "":
		r.awaitConfirmation(report)
	default:
		r.reported(p, report)
	}
}

// reported handles a daemon's report of a pod that the API server has bound to a node. The lock is held.
func (r *Runtime) reported(p *pod, report runtime.PodReport) {
	if report.Pod.Node != p.node || report.Pod.Service != p.service.key {
		if now := time.Now(); now.Sub(r.refused) >= refusalGap {
			r.refused = now
			r.log.Warn("a daemon reports a pod of another node or service; ignored, and so are others for a while",
				"pod", p.name, "service", string(p.service.key), "node", p.node,
				"reported by", report.Pod.Node, "reported service", string(report.Pod.Service))
		}
		return
	}
	if report.Event != runtime.PodNetworkGone {
		r.networkReady(p, report.Pod, report.At, false)
	}
	switch main := p.isMain(report.Container); {
	case report.Event == runtime.PodContainerCreated && main:
		r.containerStep(p, runtime.PhaseCreated, report.At)
	case report.Event == runtime.PodContainerStarted && main:
		r.containerStep(p, runtime.PhaseStarted, report.At)
	case report.Event == runtime.PodContainerExited && main:
		r.processEnded(p, report.Code, cause{})
	case report.Event == runtime.PodNetworkGone && p.is(podStopping|podLeaving):
		r.removed(p)
	case report.Event == runtime.PodNetworkGone:
		// A sandbox may be created again for the same pod. Then its process ended, and the pod is still there.
		r.processEnded(p, unknownCode, cause{})
	}
}

// podSeen handles a pod as reported by the API server, and what its daemon has reported before. inherited: it existed
// before this process.
func (r *Runtime) podSeen(o *corev1.Pod, inherited bool) {
	if _, mirror := o.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return // a node may create such a pod for itself in any namespace, with any labels
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.ensurePod(string(o.UID), v1alpha1.Key(o.Namespace+"/"+o.Labels[v1alpha1.LabelService]), o.Name)
	if p == nil {
		r.explainGone(o)
		return
	}
	if !p.is(podSeenHere) {
		p.set(podSeenHere)
		r.after(explainAfter, func() { r.explainPod(p) })
	}
	r.observePod(p, o, inherited)
	r.confirm(p)
}

// checkSurplus deletes a pod that a ReplicaSet has created beside the pods of a wake that it was to adopt. Once the
// ReplicaSet controller sees the others, it counts enough pods without this one. The lock is held.
func (r *Runtime) checkSurplus(p *pod, inherited bool) {
	s := p.service
	if inherited || p.owner != ownerReplicaSet || !p.stays() || p.is(podDelivered) || r.retired {
		return
	}
	stay := 0
	for _, other := range s.pods {
		if other.stays() {
			stay++
		}
	}
	if !s.machine.isSurplus(p.template, stay, s.deployment, time.Now()) {
		return
	}
	p.set(podStopping)
	r.log.Info("a pod that was created beside those of a wake is deleted", "service", string(s.key), "pod", p.name)
	r.deleteLater(s, p.name, p.rt.ID)
}

// observePod handles a pod as reported by the API server. The lock is held.
func (r *Runtime) observePod(p *pod, o *corev1.Pod, inherited bool) {
	if c := o.Annotations[v1alpha1.AnnotationContainer]; c != "" {
		p.container = c
	}
	p.rt.Ports = v1alpha1.TargetsIn(o.Annotations[v1alpha1.AnnotationTargetPort])
	if g := o.Spec.TerminationGracePeriodSeconds; g != nil {
		p.grace = time.Duration(*g) * time.Second
	}
	if inherited {
		p.set(podInherited)
	}
	p.owner = ownerOf(o)
	p.lending.observe(o)
	r.reconsider(p)
	p.node, p.template = o.Spec.NodeName, o.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	r.checkNode(p)
	r.checkLost(p)
	r.checkSurplus(p, inherited)
	known := podOf(o, p.container)
	if p.rt.SpecHash == "" {
		p.rt.SpecHash = known.SpecHash // and not the one in a daemon's report
	}
	switch {
	case o.DeletionTimestamp != nil:
		if !p.is(podLeaving) && !inherited {
			r.tellEnding(p, o)
		}
		r.deleting(p, o)
	case o.Status.Phase == corev1.PodFailed || o.Status.Phase == corev1.PodSucceeded:
		r.failedForGood(p, o)
		return
	}
	switch code, ended := exitCodeOf(o, p.container); {
	case ended:
		r.processEnded(p, code, causeOf(o, p.container))
	case p.is(podExited):
		r.exited(p, exitStatus{code: unknownCode, cause: causeOf(o, p.container)})
	}
	if inherited && p.exit == nil {
		p.rt.Started = known.Started
	}
	switch {
	case !known.Addr.IsValid():
	case r.cfg.WithoutDaemons:
		r.networkReady(p, known, monotime.Now(), inherited)
		if p.rt.Started == 0 && known.Started != 0 && !p.is(podExited) && p.exit == nil {
			r.containerStep(p, runtime.PhaseStarted, monotime.Now()) // the API's time is exact to a second only
		}
	case !p.is(podDelivered) && known.Started != 0:
		r.after(daemonPatience, func() { r.checkReported(p, known.Node) })
	}
	r.heldUp(p, o)
	if p.owner == ownerNone && p.stays() && !p.service.machine.single {
		p.service.machine.podFound(p.rt.ID, p.template, p.rt.SpecHash, inherited, time.Now())
		r.schedule(p.service)
	}
}

// checkReported reports a Start as held up if its pod runs but no daemon has reported it.
func (r *Runtime) checkReported(p *pod, node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := p.service
	if r.byUID[p.rt.ID] == p && !p.is(podDelivered|podStopping|podLeaving) && len(s.waiters) > 0 {
		s.waiters[0].hold(fmt.Sprintf(
			"pod %s runs on node %s, but no daemon has reported it: check the log of the daemon there", p.name, node))
		r.reportTrouble(s, trouble{reason: s.waiters[0].heldUp})
	}
}

// podDeleted handles a pod that is gone from the API.
func (r *Runtime) podDeleted(o *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.byUID[string(o.UID)]
	if p == nil {
		r.explainGone(o)
		delete(r.gone.unexplained, string(o.UID))
		return
	}
	if code, ended := exitCodeOf(o, p.container); ended {
		r.exited(p, exitStatus{code: code, cause: causeOf(o, p.container)})
	}
	r.removed(p)
}

// deploymentSeen handles a Deployment as reported by the API server.
func (r *Runtime) deploymentSeen(d *appsv1.Deployment) {
	if d.Labels[v1alpha1.LabelService] != d.Name {
		return // it is not of Wangell, but has its label
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.ensureService(v1alpha1.Key(d.Namespace + "/" + d.Name))
	s.deployment = d
	s.container = d.Spec.Template.Annotations[v1alpha1.AnnotationContainer]
	s.machine.single = isSingle(d)
	s.machine.deploymentSeen(string(d.UID), parseVersion(d.ResourceVersion), replicasOf(d), s.held(), len(s.waiters))
	r.notify()
	r.schedule(s)
}

// deploymentDeleted handles a Deployment that is gone from the API.
func (r *Runtime) deploymentDeleted(d *appsv1.Deployment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.services[v1alpha1.Key(d.Namespace+"/"+d.Name)]
	if s == nil || s.machine.uid != string(d.UID) {
		return
	}
	s.deployment = nil
	s.machine.deploymentDeleted()
	r.ended.forget(s.key)
	r.notify()
	r.dropService(s)
}

// setSeen handles a ReplicaSet as reported by the API server.
func (r *Runtime) setSeen(set *appsv1.ReplicaSet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.ensureService(v1alpha1.Key(set.Namespace + "/" + set.Labels[v1alpha1.LabelService]))
	if s.sets == nil {
		s.sets = map[types.UID]*appsv1.ReplicaSet{}
	}
	s.sets[set.UID] = set
	r.notify()
	r.schedule(s)
}

// setDeleted handles a ReplicaSet that is gone from the API.
func (r *Runtime) setDeleted(set *appsv1.ReplicaSet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.services[v1alpha1.Key(set.Namespace+"/"+set.Labels[v1alpha1.LabelService])]
	if s == nil {
		return
	}
	delete(s.sets, set.UID)
	r.notify()
	r.schedule(s)
	r.dropService(s)
}
