// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime/kube"
)

// statusPause is the shortest time between two writes of a service's status.
const statusPause = time.Second

func (r *reconciler) observe(key v1alpha1.Key) observed {
	st, known := r.StatusOf(key)
	o := observed{known: known, alone: st.NoDaemon, starting: st.Starting, unreported: st.Unreported, lost: st.Lost,
		removing: st.Removing,
		status:   st.Service.Status, pressure: st.Pressure, images: st.Images,
		reservations: st.Reservations}
	o.status.DesiredReplicas = int32(st.Desired)
	r.mu.Lock()
	_, o.troubled = r.trouble[key]
	o.fronts = r.fronts
	r.mu.Unlock()
	if st.LastWake != nil {
		o.wake = lastWake(*st.LastWake)
		if st.LastWake.Result == lifecycle.ResultRunning && !o.troubled {
			o.waking = st.LastWake.Start
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.waking.IsZero() {
		delete(r.waking, key)
	} else {
		r.waking[key] = true
	}
	o.crowded = len(r.waking) >= crowdedWakes
	return o
}

// syncReplicas scales the controller to spec.replicas, or writes the controller's number there. It returns the time
// after which to call it again; zero for never.
func (r *reconciler) syncReplicas(ctx context.Context, key v1alpha1.Key, s *v1alpha1.WangellService,
	out outcome) (time.Duration, error) {
	if s.Spec.SplitsTraffic() {
		return 0, nil // it has no pods
	}
	if len(out.invalid) > 0 || out.refused != nil || out.put != nil || !out.addr.IsValid() {
		return 0, nil
	}
	st := r.observe(key)
	if !st.known {
		return 0, nil // not synced yet; that changes the status and causes another reconciliation
	}
	if st.unreported {
		return reportPause, nil // a service that is awake would seem to sleep
	}
	m := r.remember(key)
	if m.isNewerThan(s) {
		return 0, nil // its number is outdated
	}
	if m.replicas == nil {
		first := newReplicas(s.Status.ObservedGeneration != 0, s.Status.DesiredReplicas)
		m.replicas = &first
	}
	spec := int32(none)
	if s.Spec.Replicas != nil {
		spec = *s.Spec.Replicas
	}
	before := *m.replicas
	scale, write := m.replicas.decide(spec, st.status.DesiredReplicas, min(max(spec, s.Spec.MinReplicas), out.maxReplicas))
	switch {
	case scale != none:
		why := fmt.Sprintf("spec.replicas was set to %d", scale)
		if err := r.Scale(key, int(scale), why); err != nil {
			*m.replicas = before
			return 0, err
		}
	case write != none && st.quiet(r.now()) == 0: // else writeStatus asks to be called again
		generation, err := r.writeReplicas(ctx, s, spec, write)
		if err != nil {
			return 0, err
		}
		m.generation, m.uid = generation, s.UID
		m.replicas.wrote(write)
	}
	return 0, nil
}

// isNewerThan reports whether the cache has not seen the last write of spec.replicas yet.
func (m *memory) isNewerThan(s *v1alpha1.WangellService) bool {
	return s.UID == m.uid && s.Generation < m.generation
}

// writeReplicas writes spec.replicas, unless others did meanwhile. It returns the new generation.
func (r *reconciler) writeReplicas(ctx context.Context, s *v1alpha1.WangellService, from, to int32) (int64, error) {
	patch := fmt.Sprintf(`[{"op":"test","path":"/spec/replicas","value":%d},`+
		`{"op":"replace","path":"/spec/replicas","value":%d}]`, from, to)
	if from == none {
		patch = fmt.Sprintf(`[{"op":"test","path":"/metadata/resourceVersion","value":%q},`+
			`{"op":"add","path":"/spec/replicas","value":%d}]`, s.ResourceVersion, to)
	}
	written := s.DeepCopy()
	if err := r.client.Patch(ctx, written, client.RawPatch("application/json-patch+json", []byte(patch)),
		client.FieldOwner(fieldManager)); err != nil {
		return 0, fmt.Errorf("write spec.replicas %d: %w", to, err)
	}
	return written.Generation, nil
}

// writeStatus writes the status if it has changed, at most once in statusPause, and not during a short wake without
// trouble. It returns the time after which to call it again; zero for never.
func (r *reconciler) writeStatus(ctx context.Context, key v1alpha1.Key, s *v1alpha1.WangellService,
	out outcome) (time.Duration, error) {
	r.mu.Lock()
	trouble := r.trouble[key]
	r.mu.Unlock()
	o := r.observe(key)
	if wait := o.quiet(r.now()); wait > 0 {
		return wait, nil
	}
	next := s.DeepCopy()
	next.Status = statusOf(s, out, o, trouble, r.now())
	r.Recall(key, next.Status)
	if equality.Semantic.DeepEqual(next.Status, s.Status) {
		return 0, nil
	}
	m := r.remember(key)
	if m.isNewerThan(s) {
		return statusPause, nil // the new generation is reconciled sooner, and its status has both changes
	}
	if wait := m.written.Add(statusPause).Sub(r.now()); wait > 0 {
		return wait, nil
	}
	if next.Status.LoadBalancerIP != s.Status.LoadBalancerIP && next.Status.LoadBalancerIP != "" {
		note := fmt.Sprintf("the service address is %s:%d", next.Status.LoadBalancerIP, s.Spec.FirstPort().Number)
		r.record(s, kubeEvent{v1alpha1.EventAddressAssigned, note})
	}
	if !isLost(&s.Status) && isLost(&next.Status) {
		stalled := apimeta.FindStatusCondition(next.Status.Conditions, v1alpha1.ConditionStalled)
		r.record(s, kubeEvent{v1alpha1.EventNodeLost, stalled.Message})
	}
	if err := r.client.Status().Patch(ctx, next, client.MergeFrom(s), client.FieldOwner(fieldManager)); err != nil {
		if apierrors.IsNotFound(err) {
			return 0, nil // it was deleted
		}
		return 0, fmt.Errorf("status: %w", err)
	}
	m.written = r.now()
	return 0, nil
}

// statusOf returns the status of a service. Conditions that have not changed keep their times.
func statusOf(s *v1alpha1.WangellService, out outcome, o observed, trouble kube.Trouble,
	now time.Time) v1alpha1.WangellServiceStatus {
	if trouble.Lost && o.lost == "" {
		o.lost = trouble.Reason
	}
	old := s.Status
	st := v1alpha1.WangellServiceStatus{
		LatestRequest: old.LatestRequest, LoadBalancerIP: old.LoadBalancerIP, LastWake: old.LastWake,
		State:           lifecycle.Cold.String(),
		DesiredReplicas: old.DesiredReplicas, ObservedGeneration: s.Generation,
		Selector:   labels.SelectorFromSet(selector(s)).String(),
		Conditions: slices.Clone(old.Conditions), ImageDigests: old.ImageDigests,
		UseHistory: old.UseHistory,
	}
	if out.addr.IsValid() && out.addrErr == nil {
		st.LoadBalancerIP, st.LoadBalancerHostname = out.addr.String(), out.host
	}
	if o.known {
		st.State, st.Message = o.status.State, o.status.Message
		st.Replicas, st.DesiredReplicas = o.status.Replicas, o.status.DesiredReplicas
		if l := o.status.LatestRequest; l != nil && (old.LatestRequest == nil || l.After(old.LatestRequest.Time)) {
			seconds := metav1.NewTime(l.Truncate(time.Second))
			st.LatestRequest = &seconds
		}
		st.ImageDigests, st.UseHistory = o.status.ImageDigests, o.status.UseHistory
		if o.wake != nil {
			st.LastWake = o.wake
		}
	}
	all := []metav1.Condition{
		readyCondition(out, o, st), awakeCondition(o, st), addressCondition(out), progressingCondition(out),
		scheduledCondition(trouble), stalledCondition(out, o.lost, st, trouble),
		restrictedCondition(&s.Spec, out.verdict, out.through...),
		pressureCondition(o.pressure), writerCondition(out), imageCondition(o),
	}
	if s.Spec.FreezeAfter() > 0 {
		all = append(all, reservedCondition(o.reservations))
	} else {
		apimeta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionRequestsReserved)
	}
	switch {
	case !s.Spec.BalancesRequests() || !o.fronts.watched:
		apimeta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionRequestsBalanced)
	case o.fronts.reason != "": // otherwise this controller does not know the Envoys yet
		all = append(all, balancedCondition(o.fronts, s.Spec.SplitsTraffic()))
	}
	switch {
	case o.images.VolumesNotKept != "":
		all = append(all, notKeptCondition(o))
	case o.images.Ready != "": // otherwise this controller does not know the images yet
		apimeta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionVolumesNotKept)
	}
	for _, c := range all {
		c.ObservedGeneration, c.LastTransitionTime = s.Generation, metav1.NewTime(now.Truncate(time.Second))
		apimeta.SetStatusCondition(&st.Conditions, c)
	}
	if st.Message == "" {
		st.Message = problem(out, trouble)
	}
	return st
}
