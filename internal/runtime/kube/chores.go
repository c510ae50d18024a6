// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"wangell.loutres.me/internal/runtime"
)

const (
	// handOverDelay is how long after they were made direct pods are handed over: what that has the API server do must
	// not be in the way of the wake.
	handOverDelay = 2 * time.Second
	// handOverLatest is when they are handed over even if the wake is not over: until then nobody replaces a pod that
	// is lost with its node.
	handOverLatest = 10 * time.Second
	// restDelay is how long a Deployment has had no pod before it is brought to rest.
	restDelay = 200 * time.Millisecond
)

// byOwner is the index of ReplicaSets by their Deployment's UID.
const byOwner = "owner"

// ownerIndex makes byOwner.
var ownerIndex = cache.Indexers{byOwner: func(o any) ([]string, error) {
	if set, ok := o.(*appsv1.ReplicaSet); ok {
		if owner := metav1.GetControllerOfNoCopy(set); owner != nil {
			return []string{string(owner.UID)}, nil
		}
	}
	return nil, nil
}}

// atRest tells whether pods of a Deployment, which has these ReplicaSets, can be made directly.
func atRest(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) bool {
	return d.Spec.Paused && asleep(d) && seenByController(d) && len(sets) == 0
}

// seenByController tells whether the Deployment controller has seen a Deployment as it is.
func seenByController(d *appsv1.Deployment) bool { return d.Status.ObservedGeneration >= d.Generation }

// asleep tells whether a Deployment wants no pod.
func asleep(d *appsv1.Deployment) bool {
	return d.DeletionTimestamp == nil && d.Spec.Replicas != nil && *d.Spec.Replicas == 0
}

// lookUp returns a service's Deployment and its ReplicaSets as they are known here; nil if they are not, or if what is
// known of the Deployment is older than what was written here. The lock is held.
func (r *Runtime) lookUp(s *service) (*appsv1.Deployment, []*appsv1.ReplicaSet) {
	o, ok, err := r.deployments.GetStore().GetByKey(s.namespace + "/" + s.name)
	if err != nil || !ok {
		return nil, nil
	}
	d := o.(*appsv1.Deployment)
	if string(d.UID) != s.uid || parseVersion(d.ResourceVersion) < s.version {
		return nil, nil
	}
	owned, err := r.sets.GetIndexer().ByIndex(byOwner, s.uid)
	if err != nil {
		return nil, nil
	}
	sets := make([]*appsv1.ReplicaSet, len(owned))
	for i, o := range owned {
		sets[i] = o.(*appsv1.ReplicaSet)
	}
	return d, sets
}

// chore is what is to be done about a service's Deployment when there is time.
type chore int

const (
	noChore chore = iota
	choreRest
	choreGoOn
	choreHandOver
)

// chore tells what is to be done, and after how long. The lock is held.
func (r *Runtime) chore(s *service, now time.Time) (chore, time.Duration) {
	if s.direct != nil {
		due, latest := s.direct.last.Add(handOverDelay), s.direct.first.Add(handOverLatest)
		if s.starting() || due.After(latest) {
			due = latest
		}
		return choreHandOver, due.Sub(now)
	}
	d, sets := r.lookUp(s)
	switch {
	case d == nil || s.written == unknown:
	case d.Spec.Paused && (s.written > 0 || r.cfg.ThroughDeployment):
		return choreGoOn, 0
	case s.want == 0 && asleep(d) && len(s.pods) == 0 && len(s.starts) == 0 && !r.cfg.ThroughDeployment && (!d.Spec.Paused || len(sets) > 0):
		return choreRest, restDelay
	}
	return noChore, 0
}

// starting tells whether a Start is under way.
func (s *service) starting() bool {
	for _, p := range s.pods {
		if p.start != nil {
			return true
		}
	}
	return len(s.starts) > 0
}

// tidy sees to it that chores are done when they are due. The lock is held.
func (r *Runtime) tidy(s *service) {
	if s.tidying {
		select {
		case s.changed <- struct{}{}:
		default:
		}
		return
	}
	if what, _ := r.chore(s, time.Now()); what != noChore && !r.closed {
		s.tidying = true
		r.workers.Go(func() { r.doChores(s) })
	}
}

// doChores does a service's chores until there are none.
func (r *Runtime) doChores(s *service) {
	const shortest, longest = 100 * time.Millisecond, 5 * time.Second
	failed := time.Time{} // when the next try may be, after one that failed
	pause := shortest
	for {
		r.mu.Lock()
		what, delay := r.chore(s, time.Now())
		if what == noChore {
			s.tidying = false
			r.dropService(s)
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		timer := time.NewTimer(max(delay, time.Until(failed)))
		select {
		case <-timer.C:
		case <-s.changed:
			timer.Stop()
			continue
		case <-r.ctx.Done():
			timer.Stop()
			return
		}
		err := r.doChore(s, what)
		if err == nil {
			pause = shortest
			continue
		}
		if r.ctx.Err() == nil {
			r.log.Warn(err.Error(), "service", string(s.key), "again in", pause)
		}
		failed, pause = time.Now().Add(pause), min(2*pause, longest)
	}
}

// doChore does what was due, if it still is what is to be done.
func (r *Runtime) doChore(s *service, due chore) error {
	end, err := s.turn(r.ctx)
	if err != nil {
		return err
	}
	defer end()
	r.mu.Lock()
	what, delay := r.chore(s, time.Now())
	d, _ := r.lookUp(s)
	dir, want := s.direct, s.number()
	r.mu.Unlock()
	switch {
	case what != due || what == choreHandOver && delay > 0:
		return nil
	case what == choreHandOver:
		return r.giveUpDirect(r.ctx, s, dir, want)
	case what == choreGoOn:
		return r.goOn(r.ctx, s)
	case what == choreRest:
		return r.rest(r.ctx, s, d)
	}
	return nil
}

// goOn lets a paused Deployment go on, and waits until that is known here.
func (r *Runtime) goOn(ctx context.Context, s *service) error {
	if err := r.pause(ctx, s, false, ""); err != nil {
		return err
	}
	r.known(ctx, func() bool { d, _ := r.lookUp(s); return d != nil && !d.Spec.Paused })
	return nil
}

// rest brings a Deployment without pods to rest. Who wants a pod meanwhile waits for its turn.
func (r *Runtime) rest(ctx context.Context, s *service, d *appsv1.Deployment) error {
	if !d.Spec.Paused {
		if err := r.pause(ctx, s, true, d.ResourceVersion); err != nil {
			return err
		}
	}
	// One that does not know that it is paused would make its ReplicaSet anew.
	_, sets, err := r.observed(ctx, s, "is paused", func(d *appsv1.Deployment) bool { return d.Spec.Paused })
	if err != nil {
		return err
	}
	for _, set := range sets {
		if set.Spec.Replicas != nil && *set.Spec.Replicas > 0 || set.Status.Replicas > 0 {
			return fmt.Errorf("service %s: %w: ReplicaSet %s has pods, though none is wanted", s.key, runtime.ErrUnavailable, set.Name)
		}
		if err := r.deleteSet(ctx, s, set); err != nil {
			return err
		}
	}
	r.known(ctx, func() bool { _, sets := r.lookUp(s); return len(sets) == 0 })
	return nil
}

// deleteSet deletes a ReplicaSet as it is known here.
func (r *Runtime) deleteSet(ctx context.Context, s *service, set *appsv1.ReplicaSet) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	uid, version, background := set.UID, set.ResourceVersion, metav1.DeletePropagationBackground
	err := r.cfg.Client.AppsV1().ReplicaSets(s.namespace).Delete(ctx, set.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, PropagationPolicy: &background,
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return r.apiError(s.key, "delete ReplicaSet "+set.Name, err)
	}
	return nil
}
