// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/reservation"
)

// resizesAtOnce is the number of concurrent resizes.
const resizesAtOnce = 8

// SetFrozen implements runtime.Cluster.
func (r *Runtime) SetFrozen(podID string, frozen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	still := stillRuns
	if frozen {
		still = stillFrozen
	}
	p := r.byUID[podID]
	if p == nil || p.lending.still == still {
		return
	}
	p.lending.still, p.lending.since = still, time.Now()
	r.reconsider(p)
}

// Reservations implements runtime.Cluster.
func (r *Runtime) Reservations(k v1alpha1.Key) (sum reservation.Summary) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.services[k]; s != nil {
		sum = s.reservations(r.resizing.why)
	}
	return sum
}

// reservations sums up the Reservations of a service's pods.
func (s *service) reservations(why string) (sum reservation.Summary) {
	for _, p := range s.pods {
		one := p.lending.reservations(p.name, why)
		sum.CPU, sum.Memory = sum.CPU+one.CPU, sum.Memory+one.Memory
		sum.ShortOn = max(sum.ShortOn, one.ShortOn)
		for _, text := range []struct {
			of  *string
			one string
		}{{&sum.Short, one.Short}, {&sum.Kept, one.Kept}} {
			if *text.of == "" || text.one != "" && text.one < *text.of { // always the same pod
				*text.of = text.one
			}
		}
	}
	return sum
}

// reconsider schedules a check of a pod's requests. The lock is held.
func (r *Runtime) reconsider(p *pod) {
	if p.lending.concerns() {
		r.resizes.Add(p.rt.ID)
	}
	r.tellReservations(p.service)
}

// tellReservations reports that the Reservations of a service have changed visibly. The lock is held.
func (r *Runtime) tellReservations(s *service) {
	now := s.reservations(r.resizing.why)
	if now.Short != s.told.Short || now.Kept != s.told.Kept {
		s.told = now
		r.cfg.Reserved(s.key)
	}
}

// reserve resizes pods until Retire or Close.
func (r *Runtime) reserve() {
	slots := make(chan struct{}, resizesAtOnce)
	for {
		uid, closed := r.resizes.Get()
		if closed {
			return
		}
		slots <- struct{}{}
		r.workers.Go(func() {
			defer func() { r.resizes.Done(uid); <-slots }()
			r.reserveFor(uid)
		})
	}
}

// reserveFor takes the next step for the requests of a pod.
func (r *Runtime) reserveFor(uid string) {
	now := time.Now()
	r.mu.Lock()
	p := r.byUID[uid]
	if p == nil || !p.stays() {
		r.mu.Unlock()
		return
	}
	step, at, err := p.lending.next(now, r.opened, now.After(r.resizing.until))
	if err != nil && p.lending.short != err.Error() {
		p.lending.short = err.Error()
		r.log.Warn(err.Error(), "service", string(p.service.key))
	}
	r.tellReservations(p.service)
	id, name := p.service.ident, p.name
	r.mu.Unlock()
	if !at.IsZero() {
		r.resizes.AddAfter(uid, at.Sub(now))
	}
	if step.Patch == nil {
		return
	}
	o, err := r.api.reserve(r.ctx, id, name, step)
	r.log.Debug("requests of a pod changed", "service", string(id.key), "pod", name, "patch", string(step.Patch),
		"took", time.Since(now), "error", err)
	if err == nil {
		trimPod(o)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.byUID[uid]; p != nil {
		r.reserved(p, step, o, err)
	}
}

// reserved handles the result of a step. The lock is held.
func (r *Runtime) reserved(p *pod, step reservation.Step, o *corev1.Pod, err error) {
	l := &p.lending
	switch why := cannotResize(err); {
	case err == nil:
		l.observe(o)
		l.short = ""
		r.resizeBackoff.Forget(p.rt.ID)
		if step.Resize {
			r.resizing = resizing{}
		}
		r.resizes.Add(p.rt.ID) // for the next step
	case errors.Is(err, context.Canceled) || errors.Is(err, errRetired):
		return
	case step.Resize && why != "":
		if r.resizing.why == "" {
			r.log.Warn("frozen pods keep their requests: " + why)
		}
		r.resizing = resizing{why, time.Now().Add(resizeAgain)}
		if step.Lowers {
			r.resizes.Add(p.rt.ID) // to remove the note
			r.resizes.AddAfter(p.rt.ID, resizeAgain)
		} else { // it has given something back before
			l.short = why
			r.resizes.AddAfter(p.rt.ID, r.resizeBackoff.When(p.rt.ID))
		}
		for _, s := range r.services {
			r.tellReservations(s)
		}
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // it is gone, or another pod has its name
	case isRefusal(err) && step.Lowers:
		l.keeps, l.kept = reservation.Set{CPU: true, Memory: true}, err.Error()
		r.resizes.Add(p.rt.ID)
	default:
		if !step.Lowers {
			l.short = err.Error()
		}
		r.resizes.AddAfter(p.rt.ID, r.resizeBackoff.When(p.rt.ID))
	}
	r.tellReservations(p.service)
}

// cannotResize returns why the API server cannot resize any pod; empty for any other error.
func cannotResize(err error) string {
	switch {
	case apierrors.IsMethodNotSupported(err),
		apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return "the API server cannot resize pods, which Kubernetes 1.33 and later do"
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), `cannot patch resource "pods/resize"`):
		return "the controller may not resize pods: its ClusterRole lacks patch of pods/resize, which the chart " +
			"gives it"
	}
	return ""
}

// isRefusal reports whether the API server refuses the new requests of a pod.
func isRefusal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}
