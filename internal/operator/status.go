// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/kube"
)

// statusPause is the shortest time between two writes of a service's status.
const statusPause = time.Second

// wakePatience is the time after which the status says that a wake is under way. A shorter wake is written when it is
// over, as it needs the API server and the machine itself.
const wakePatience = 2 * time.Second

func oldestFirst(all []v1alpha1.WangellService) {
	slices.SortFunc(all, func(a, b v1alpha1.WangellService) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
	})
}

// observed is what the controller knows of a service.
type observed struct {
	known  bool // the controller has the service
	alone  bool // no daemon is connected
	status v1alpha1.WangellServiceStatus
	wake   *v1alpha1.LastWake
	waking time.Time // when the wake that is under way began; zero if there is none, or it has trouble
}

// quiet returns for how long nothing is written of a service because it is being woken. The end of the wake causes a
// reconciliation of its own.
func (o observed) quiet(now time.Time) time.Duration {
	if o.waking.IsZero() {
		return 0
	}
	return max(o.waking.Add(wakePatience).Sub(now), 0)
}

func (r *reconciler) observe(key runtime.Key) observed {
	st, known := r.StatusOf(key)
	o := observed{known: known, alone: st.NoDaemon, status: st.Service.Status}
	o.status.DesiredReplicas = int32(st.Desired)
	if st.LastWake != nil {
		o.wake = lastWake(*st.LastWake)
		r.mu.Lock()
		_, troubled := r.trouble[key]
		r.mu.Unlock()
		if st.LastWake.Result == lifecycle.ResultRunning && !troubled {
			o.waking = st.LastWake.Start
		}
	}
	return o
}

// lastWake converts a waterfall for the status.
func lastWake(w lifecycle.Waterfall) *v1alpha1.LastWake {
	out := &v1alpha1.LastWake{Start: metav1.NewTime(w.Start.Truncate(time.Second)), Result: string(w.Result),
		Reason: w.Reason}
	for _, p := range w.Phases {
		out.Phases = append(out.Phases, v1alpha1.WakePhase{Name: string(p.Name), Ms: p.At.Milliseconds()})
	}
	return out
}

// syncReplicas scales the controller as spec.replicas says, or writes the number that it wants there.
func (r *reconciler) syncReplicas(ctx context.Context, key runtime.Key, s *v1alpha1.WangellService, out outcome) error {
	if len(out.invalid) > 0 || out.refused != nil || out.put != nil || !out.addr.IsValid() {
		return nil
	}
	st := r.observe(key)
	if !st.known {
		return nil // not synced yet; that changes the status and causes another reconciliation
	}
	m := r.remember(key)
	if s.Generation < m.generation {
		return nil // the cache has not seen the last write here: its number is outdated
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
			return err
		}
	case write != none && st.quiet(r.now()) == 0: // else writeStatus asks to be called again
		generation, err := r.writeReplicas(ctx, s, spec, write)
		if err != nil {
			return err
		}
		m.generation = generation
		m.replicas.wrote(write)
	}
	return nil
}

// writeReplicas writes spec.replicas, unless others did meanwhile. It returns the generation that this made.
func (r *reconciler) writeReplicas(ctx context.Context, s *v1alpha1.WangellService, from, to int32) (int64, error) {
	patch := fmt.Sprintf(`[{"op":"test","path":"/spec/replicas","value":%d},`+
		`{"op":"replace","path":"/spec/replicas","value":%d}]`, from, to)
	if from == none {
		patch = fmt.Sprintf(`[{"op":"test","path":"/metadata/resourceVersion","value":%q},{"op":"add","path":"/spec/replicas","value":%d}]`, s.ResourceVersion, to)
	}
	written := s.DeepCopy()
	if err := r.client.Patch(ctx, written, client.RawPatch("application/json-patch+json", []byte(patch)),
		client.FieldOwner(fieldManager)); err != nil {
		return 0, fmt.Errorf("write spec.replicas %d: %w", to, err)
	}
	return written.Generation, nil
}

// remember returns the memory of a service, which may be new. Only the service's reconciliation uses it, one at a time.
func (r *reconciler) remember(key runtime.Key) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.known[key]
	if m == nil {
		m = &memory{}
		r.known[key] = m
	}
	return m
}

// writeStatus writes the status if it has changed, at most once in statusPause, and not during a short wake without
// trouble. It returns after which time it is to be called again; zero for not at all.
func (r *reconciler) writeStatus(ctx context.Context, key runtime.Key, s *v1alpha1.WangellService,
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
	if equality.Semantic.DeepEqual(next.Status, s.Status) {
		return 0, nil
	}
	m := r.remember(key)
	if wait := m.written.Add(statusPause).Sub(r.now()); wait > 0 {
		return wait, nil
	}
	if next.Status.LoadBalancerIP != s.Status.LoadBalancerIP && next.Status.LoadBalancerIP != "" {
		r.recorder.Eventf(s, nil, corev1.EventTypeNormal, "AddressAssigned", "AssignAddress", "the service address is %s:%d",
			next.Status.LoadBalancerIP, s.Spec.Port)
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
	old := s.Status
	st := v1alpha1.WangellServiceStatus{
		LatestRequest: old.LatestRequest, LoadBalancerIP: old.LoadBalancerIP, LastWake: old.LastWake,
		State:           lifecycle.Cold.String(),
		DesiredReplicas: old.DesiredReplicas, ObservedGeneration: s.Generation,
		Selector:   labels.SelectorFromSet(selector(s)).String(),
		Conditions: slices.Clone(old.Conditions),
	}
	if out.addr.IsValid() && out.addrErr == nil {
		st.LoadBalancerIP = out.addr.String()
	}
	if o.known {
		st.State, st.Message, st.Replicas, st.DesiredReplicas = o.status.State, o.status.Message, o.status.Replicas,
			o.status.DesiredReplicas
		if l := o.status.LatestRequest; l != nil && (old.LatestRequest == nil || l.After(old.LatestRequest.Time)) {
			seconds := metav1.NewTime(l.Truncate(time.Second))
			st.LatestRequest = &seconds
		}
		if o.wake != nil {
			st.LastWake = o.wake
		}
	}
	for _, c := range []metav1.Condition{
		readyCondition(out, o, st), awakeCondition(o, st), addressCondition(out), progressingCondition(out),
		scheduledCondition(trouble),
	} {
		c.ObservedGeneration, c.LastTransitionTime = s.Generation, metav1.NewTime(now.Truncate(time.Second))
		apimeta.SetStatusCondition(&st.Conditions, c)
	}
	if st.Message == "" {
		st.Message = problem(out, trouble)
	}
	return st
}

// problem returns what a user has to fix, in one line; empty if there is nothing.
func problem(out outcome, trouble kube.Trouble) string {
	switch {
	case len(out.invalid) > 0:
		return strings.ReplaceAll(out.invalid.Error(), "\n", "; ")
	case out.refused != nil:
		return out.refused.Error()
	case out.addrErr != nil:
		return out.addrErr.Error()
	case out.put != nil:
		return out.put.Error()
	}
	return trouble.Reason
}

// condition returns a condition. message may be empty.
func condition(name string, is bool, reason, message string) metav1.Condition {
	c := metav1.Condition{Type: name, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if is {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func readyCondition(out outcome, o observed, st v1alpha1.WangellServiceStatus) metav1.Condition {
	const name = v1alpha1.ConditionReady
	switch {
	case len(out.invalid) > 0:
		return condition(name, false, "Invalid", problem(out, kube.Trouble{}))
	case out.refused != nil:
		return condition(name, false, "Refused", out.refused.Error())
	case out.addrErr != nil:
		return condition(name, false, "NoAddress", out.addrErr.Error())
	case out.put != nil:
		return condition(name, false, "Refused", out.put.Error())
	case !o.known:
		return condition(name, false, "Starting", "the controller is starting")
	case o.alone:
		return condition(name, false, "NoDaemon",
			"no daemon is connected to the controller: check the pods of the daemons' DaemonSet and their logs")
	case st.State == lifecycle.Failed.String():
		return condition(name, false, "WakeFailed", o.status.Message)
	case st.State == lifecycle.Warm.String():
		return condition(name, true, "Serving", "")
	}
	return condition(name, true, "CanWake", "")
}

func awakeCondition(o observed, st v1alpha1.WangellServiceStatus) metav1.Condition {
	if !o.known {
		return condition(v1alpha1.ConditionAwake, false, "Unknown", "")
	}
	return condition(v1alpha1.ConditionAwake, st.State == lifecycle.Warm.String(), st.State, "")
}

func addressCondition(out outcome) metav1.Condition {
	const name = v1alpha1.ConditionAddressAssigned
	var reason addressError
	switch {
	case len(out.invalid) > 0:
		return condition(name, false, "Invalid", problem(out, kube.Trouble{}))
	case out.refused != nil && !out.addr.IsValid():
		return condition(name, false, "Refused", out.refused.Error())
	case errors.As(out.addrErr, &reason):
		return condition(name, false, reason.reason, reason.message)
	case out.put != nil:
		return condition(name, false, "Conflict", out.put.Error())
	}
	return condition(name, true, "Assigned", "")
}

func progressingCondition(out outcome) metav1.Condition {
	const name = v1alpha1.ConditionProgressing
	switch d := out.deploy; {
	case len(out.invalid) > 0:
		return condition(name, false, "Invalid", problem(out, kube.Trouble{}))
	case out.refused != nil:
		return condition(name, false, "Refused", out.refused.Error())
	case d != nil && rollingOut(d):
		return condition(name, true, "RollingOut", fmt.Sprintf("%d of %d pods are of the present spec",
			d.Status.UpdatedReplicas, *d.Spec.Replicas))
	}
	return condition(name, false, "Complete", "")
}

// rollingOut reports whether pods of an older spec are being replaced.
func rollingOut(d *appsv1.Deployment) bool {
	return d.Status.Replicas > d.Status.UpdatedReplicas && d.Spec.Replicas != nil && *d.Spec.Replicas > 0
}

func scheduledCondition(t kube.Trouble) metav1.Condition {
	if t.Unschedulable {
		return condition(v1alpha1.ConditionScheduled, false, "Unschedulable", t.Reason)
	}
	return condition(v1alpha1.ConditionScheduled, true, "Scheduled", "")
}

var _ controllerAPI = (*controller.Controller)(nil)
