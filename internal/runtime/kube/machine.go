// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/images/imageref"
)

// number is the number of replicas that may be written at present.
func (m *machine) number() int32 { return m.want + m.excess }

// pending reports whether the number of replicas has to be written.
func (m *machine) pending() bool { return m.number() != m.written }

// due returns the next sequence, and its earliest time. Nothing is due while a sequence is in progress.
func (m *machine) due(o observation) (what task, at time.Time) {
	d := o.deployment
	switch {
	case m.uid == "" || m.stage != idle:
	case m.single && d != nil && (!d.Spec.Paused || len(o.sets) > 0):
		return convertTask, o.now
	case m.single && (d == nil || !m.pending()): // an unknown Deployment may have a ReplicaSet, which would end the pod
	case m.pending():
		return writeTask, o.now
	case m.direct != nil:
		at, latest := m.direct.last.Add(handOverDelay), m.direct.first.Add(handOverLatest)
		if o.starting || at.After(latest) {
			at = latest
		}
		if o.crowded {
			at = later(at, earlier(o.now.Add(crowdedPause), m.direct.first.Add(handOverCrowded)))
		}
		return handOverTask, at
	case d == nil:
	case d.Spec.Paused && (m.written > 0 || m.throughDeployment):
		return resumeTask, o.now
	case m.want == 0 && scaledToZero(d) && o.pods == 0 && !o.starting && !m.throughDeployment &&
		(!d.Spec.Paused || len(o.sets) > 0):
		return restTask, o.emptySince.Add(restDelay)
	}
	return noTask, time.Time{}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// next returns the next action. If no sequence is in progress, it begins the one that is due; an unwritten number
// comes first, even if the Deployment is unknown.
func (m *machine) next(o observation) action {
	if m.stage == idle {
		m.begin(o)
	}
	expired := !o.now.Before(m.deadline)
	switch m.stage {
	case idle:
		_, at := m.due(o)
		return wait{at}
	case scaling, dropScaling, handScaling:
		return scale{m.target}
	case creating:
		return createPods{directPod(m.direct.from, m.direct.hash), int(m.target) - len(m.direct.uids),
			maps.Clone(m.direct.uids)}
	case dropDeleting:
		return deletePods{slices.Sorted(maps.Keys(m.direct.uids)), m.direct.hash}
	case handObserving:
		// A Deployment that is not known to want pods would have the ReplicaSet scaled to none.
		d := o.deployment
		if d != nil && parseVersion(d.ResourceVersion) >= m.scaled && seenByController(d) {
			m.stage = handCreating
			// A pod that the API server has lost before it was seen counts, but is not to be replaced here.
			replicas := min(int32(len(m.direct.uids)), m.target)
			set := adopterOf(d, m.direct.template(d), m.direct.hash, replicas)
			m.adopter = set
			m.handed.hash, m.handed.until = m.direct.hash, o.now.Add(surplusTimeout)
			return createSet{set}
		}
		return m.waitOr(expired, fmt.Sprintf("wants %d pods", m.target))
	case recognizing:
		if until := m.recognizeUntil(o.deployment); o.now.Before(until) && !m.recognized(o.sets) {
			return wait{until}
		}
		m.stage = resuming
		return setPaused{}
	case resuming:
		return setPaused{}
	case resumeObserving:
		if d := o.deployment; !expired && (d == nil || d.Spec.Paused) {
			return wait{m.deadline}
		}
		return m.end()
	case restPausing:
		if d := o.deployment; d != nil && !d.Spec.Paused {
			return setPaused{true, d.ResourceVersion}
		}
		m.enter(restObserving, o.now)
		return m.next(o)
	case restObserving:
		// A Deployment controller that has not seen the pause would create the ReplicaSet again.
		if d := o.deployment; d != nil && d.Spec.Paused && seenByController(d) {
			m.stage, m.doomed = restDeleting, slices.Clone(o.sets)
			return m.next(o)
		}
		return m.waitOr(expired, "is paused")
	case restDeleting:
		if len(m.doomed) == 0 {
			m.enter(restEnding, o.now)
			return m.next(o)
		}
		if s := m.doomed[0]; !m.single && (s.Status.Replicas > 0 || s.Spec.Replicas != nil && *s.Spec.Replicas > 0) {
			return giveUp{fmt.Sprintf("ReplicaSet %s has pods, though none is wanted", s.Name)}
		}
		return deleteSet{m.doomed[0], m.single}
	case restEnding:
		if len(o.sets) > 0 && !expired {
			return wait{m.deadline}
		}
		return m.end()
	}
	panic(fmt.Sprintf("kube: machine in stage %d", m.stage))
}

// begin enters the first stage of the sequence that is due.
func (m *machine) begin(o observation) {
	what, at := m.due(o)
	switch {
	case what == convertTask:
		m.stage = restPausing
	case m.single && what == noTask:
	case m.pending(): // due leaves it out while there is no Deployment
		m.beginWrite(o)
	case at.After(o.now):
	case what == handOverTask:
		m.beginGiveUpDirect()
	case what == resumeTask:
		m.enter(recognizing, o.now)
	case what == restTask:
		m.stage = restPausing
	}
}

// beginWrite begins to bring the number of pods to the wanted one.
func (m *machine) beginWrite(o observation) {
	d := o.deployment
	m.target = m.number()
	if m.direct == nil && m.target > 0 && m.written == 0 && !m.throughDeployment && d != nil && atRest(d, o.sets) {
		m.direct = &direct{hash: directHash(d), uids: map[string]bool{}, from: d, first: o.now, last: o.now}
	}
	m.written, m.sending = unknown, true
	switch dir := m.direct; {
	case dir == nil:
		m.stage = scaling
	case int(m.target) > len(dir.uids) && dir.from != nil && !dir.announced:
		m.stage = creating
	default:
		m.beginGiveUpDirect()
	}
}

// beginGiveUpDirect begins to hand the direct pods over, or to delete them if none is wanted.
func (m *machine) beginGiveUpDirect() {
	m.target = m.number()
	switch {
	case m.target > 0:
		m.direct.announced = true
		m.stage = handScaling
	case m.direct.announced: // there may be a ReplicaSet, which would replace them
		m.stage = dropScaling
	default:
		m.stage = dropDeleting
	}
}

// recognized reports whether the Deployment has recognized its ReplicaSets, in a hand-over the one that adopts the
// pods.
func (m *machine) recognized(sets []*appsv1.ReplicaSet) bool {
	found := m.adopter == nil
	for _, s := range sets {
		if m.adopter == nil || m.adopter.Name == s.Name {
			if s.Annotations[revisionAnnotation] == "" {
				return false
			}
			found = true
		}
	}
	return found
}

// recognizeUntil returns until when to wait for the Deployment to recognize its ReplicaSets. A Deployment controller
// that has not seen the adopter creates another ReplicaSet once the Deployment is resumed, whose pods replace those of
// the wake. It does not look for a ReplicaSet of an older template, whose pods it will replace in any case.
func (m *machine) recognizeUntil(d *appsv1.Deployment) time.Time {
	if m.adopter != nil && d != nil && sameButHash(&m.adopter.Spec.Template, &d.Spec.Template) {
		return m.deadline.Add(recognizeTimeout - observeTimeout)
	}
	return m.deadline
}

// template is the one that the pods were created from. The Deployment's may be newer; it then replaces the pods,
// unless it differs in the names of images alone: the operator has found out the digests that the pods' tags stand for,
// which must not end the pods of a wake. For pods of another leader, only the label identifies it.
func (dir *direct) template(d *appsv1.Deployment) *corev1.PodTemplateSpec {
	if dir.from != nil {
		if now := &d.Spec.Template; sameButImages(&dir.from.Spec.Template, now) {
			return now
		}
		return &dir.from.Spec.Template
	}
	t := d.Spec.Template.DeepCopy()
	if dir.specHash != "" {
		t.Labels = with(t.Labels, v1alpha1.LabelSpecHash, dir.specHash)
	}
	return t
}

// sameButImages reports whether two templates differ in nothing but the digests of their images.
func sameButImages(a, b *corev1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(withoutDigests(a), withoutDigests(b))
}

// withoutDigests returns a copy of a template whose images are named by their repositories alone. A tag and the digest
// that replaces it have the same one; two tags belong to two specs, which LabelSpecHash tells apart.
func withoutDigests(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	t = t.DeepCopy()
	for c := range v1alpha1.Containers(&t.Spec) {
		c.Image = imageref.Repository(c.Image)
	}
	return t
}

// done reports the result of the action that next returned last.
func (m *machine) done(res result, now time.Time) {
	if m.stage == creating {
		m.created(res.created, now)
		return
	}
	if res.err != nil {
		m.abort()
		return
	}
	switch m.stage {
	case scaling:
		m.written, m.version = m.target, max(m.version, res.version)
		m.abort()
	case dropScaling:
		m.stage = dropDeleting
	case dropDeleting:
		m.direct, m.written = nil, 0
		m.abort()
	case handScaling:
		m.scaled = res.version
		m.enter(handObserving, now)
	case handCreating:
		m.enter(recognizing, now)
	case resuming:
		m.enter(resumeObserving, now)
	case restPausing:
		m.enter(restObserving, now)
	case restDeleting:
		m.doomed = m.doomed[1:]
	}
}

// created records the direct pods that were created; failed ones will be created again.
func (m *machine) created(uids []string, now time.Time) {
	for _, uid := range uids {
		m.direct.uids[uid] = true
	}
	m.direct.last = now
	m.written = int32(len(m.direct.uids))
	if m.written == 0 {
		m.direct = nil
	}
	m.abort()
}

// isSurplus reports whether a pod that appears owned by a ReplicaSet is one too many, given its pod-template-hash and
// the number of pods that stay, with it. A ReplicaSet controller that does not see the pods of a wake yet, as after an
// outage of the API server, creates others beside them instead of adopting them. Pods of a rollout are of another
// ReplicaSet.
func (m *machine) isSurplus(hash string, pods int, d *appsv1.Deployment, now time.Time) bool {
	if m.handed.hash != hash || now.After(m.handed.until) {
		return false
	}
	wanted := max(m.want, m.target)
	if d != nil {
		wanted = max(wanted, replicasOf(d))
	}
	return pods > int(wanted)
}

// end completes a sequence that ends with a wait.
func (m *machine) end() action {
	if m.stage == resumeObserving && m.direct != nil {
		m.direct, m.written, m.version = nil, m.target, max(m.version, m.scaled)
	}
	m.abort()
	return wait{}
}

// abort leaves the sequence in progress. An incomplete sequence begins anew when it is due again.
func (m *machine) abort() { m.stage, m.sending, m.adopter, m.doomed = idle, false, nil, nil }

func (m *machine) enter(s stage, now time.Time) { m.stage, m.deadline = s, now.Add(observeTimeout) }

// waitOr waits until the Deployment controller has seen a change, or gives up.
func (m *machine) waitOr(expired bool, what string) action {
	if expired {
		return giveUp{"the Deployment controller has not seen that the Deployment " + what +
			": check kube-controller-manager"}
	}
	return wait{m.deadline}
}
