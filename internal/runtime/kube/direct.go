// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

// A wake must not wait for the Deployment controller and the ReplicaSet controller, each of which hears of a change,
// reads, and writes, one after the other. So the pods of a wake are created here, from the template of the Deployment,
// and are handed over to a ReplicaSet of it when the wake is over: they are direct pods until then.
//
//	at rest         the Deployment is paused, wants no pod, and has no ReplicaSet: none can be scaled by what follows
//	direct pods     they have the labels that a ReplicaSet's selector will match, and no controller
//	handing over    the Deployment wants as many (it is paused: nothing happens); a ReplicaSet of its template is created
//	                that selects the pods, and adopts them; the Deployment finds it to be its own, and is paused no more
//
// The order is what makes it safe: at no time does a controller see a pod too many or too few, whatever it hears of last.
// (pkg/controller/deployment/sync.go of Kubernetes: a paused Deployment has its ReplicaSets scaled, but makes none;
// pkg/controller/controller_ref_manager.go: what matches a selector and has no controller is adopted.)

// direct is what is known of a service's direct pods.
type direct struct {
	hash string          // what the ReplicaSet will select them by: their label pod-template-hash
	uids map[string]bool // those that are there, or about to be
	// from is the Deployment as it was when they were made of its template; nil if another controller made them.
	from *appsv1.Deployment
	// first and last are when they were made.
	first, last time.Time
	handing     bool // the Deployment has been told of them
}

// directHash is the label of the direct pods of a Deployment at rest. Two controllers that make some of the same one, as
// when the lead changes, make pods of one ReplicaSet; those of its next rest, which is of another generation, are of another.
func directHash(d *appsv1.Deployment) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%d", d.UID, d.Generation)
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// directPod is the pod that a ReplicaSet would make from the template of a Deployment.
func directPod(d *appsv1.Deployment, hash string) *corev1.Pod {
	t := d.Spec.Template.DeepCopy()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, GenerateName: d.Name + "-" + hash + "-", Annotations: t.Annotations, Finalizers: t.Finalizers,
			Labels: with(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey, hash),
			// Not its controller, or no ReplicaSet would adopt it; but it goes with it.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name, UID: d.UID}},
		},
		Spec: t.Spec,
	}
}

// beginDirect tells whether pods can be made directly for a service that had none. The lock is held.
func (r *Runtime) beginDirect(s *service) *direct {
	d, sets := r.lookUp(s)
	if r.cfg.ThroughDeployment || d == nil || s.written != 0 || !atRest(d, sets) {
		return nil
	}
	return &direct{hash: directHash(d), uids: map[string]bool{}, from: d, first: time.Now(), last: time.Now()}
}

// makeDirect creates direct pods, all at once. It is called by write in its turn. As in what follows, dir is the service's
// until its Deployment is deleted, which may happen at any time.
func (r *Runtime) makeDirect(ctx context.Context, s *service, dir *direct, more int) error {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	failed := make([]error, more)
	var all sync.WaitGroup
	for i := range more {
		all.Go(func() { failed[i] = r.createDirect(ctx, s, dir) })
	}
	all.Wait()
	err := errors.Join(failed...)
	r.log.Debug("pods created", "service", string(s.key), "pods", more, "took", time.Since(begin), "error", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.direct != dir {
		return err
	}
	dir.last = time.Now()
	s.written = int32(len(dir.uids))
	if s.written == 0 && !dir.handing {
		s.direct = nil
	}
	r.tidy(s)
	return err
}

func (r *Runtime) createDirect(ctx context.Context, s *service, dir *direct) error {
	made, err := r.cfg.Client.CoreV1().Pods(s.namespace).Create(ctx, directPod(dir.from, dir.hash), metav1.CreateOptions{})
	if err != nil && refusedPod(err) {
		return fmt.Errorf("service %s: create a pod: %w", s.key, err)
	}
	if err != nil {
		return r.apiError(s.key, "create a pod", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid := string(made.UID); !r.ended.has(uid) {
		dir.uids[uid] = true
	}
	return nil
}

// lostDirect takes that nobody will replace a direct pod that goes or has failed: the next Start makes another. The lock
// is held.
func (r *Runtime) lostDirect(p *pod) {
	s := p.service
	if dir := s.direct; dir != nil && dir.uids[p.rt.ID] && !dir.handing {
		delete(dir.uids, p.rt.ID)
		if s.written != unknown {
			s.written = int32(len(dir.uids))
		}
		r.settleLater(s)
	}
}

// foundDirect takes a pod that has no controller and that this Runtime did not make, or does not know to have made: it is
// that of the controller before this one, or of a request that was not answered. before: it was there before this
// process. The lock is held.
func (r *Runtime) foundDirect(p *pod, hash string, before bool) {
	s := p.service
	// Where the Deployment has pods, this one is about to be adopted, unless the controller before this one ended just
	// then: handing it over once more does no harm.
	if hash == "" || !p.stays() || s.sending || s.written > 0 && s.direct == nil && !before {
		return
	}
	if s.direct == nil {
		s.direct = &direct{hash: hash, uids: map[string]bool{}, first: time.Now(), last: time.Now()}
	}
	if dir := s.direct; dir.hash != hash || dir.uids[p.rt.ID] {
		return
	}
	s.direct.uids[p.rt.ID] = true
	s.written = int32(len(s.direct.uids))
	if before {
		s.want = max(s.want, s.written)
	}
	r.settleLater(s)
	r.tidy(s)
}

// settleLater has settle called without the lock, which is held.
func (r *Runtime) settleLater(s *service) {
	if !r.closed && s.written != s.number() {
		r.workers.Go(func() { r.settle(s) })
	}
}

// writeDirect brings the number of pods of a service that has direct pods to want. It is called by write in its turn.
func (r *Runtime) writeDirect(ctx context.Context, s *service, dir *direct, want int32) error {
	r.mu.Lock()
	have := int32(len(dir.uids))
	r.mu.Unlock()
	if want > have && dir.from != nil && !dir.handing {
		return r.makeDirect(ctx, s, dir, int(want-have))
	}
	return r.giveUpDirect(ctx, s, dir, want)
}

// giveUpDirect hands the direct pods over, or deletes them if none is wanted.
func (r *Runtime) giveUpDirect(ctx context.Context, s *service, dir *direct, want int32) error {
	if want == 0 {
		return r.dropDirect(ctx, s, dir)
	}
	return r.handOver(ctx, s, dir, want)
}

// dropDirect deletes the direct pods: the service sleeps again.
func (r *Runtime) dropDirect(ctx context.Context, s *service, dir *direct) error {
	r.mu.Lock()
	names, unseen := map[string]string{}, map[string]bool{}
	for uid := range dir.uids {
		if p := r.byUID[uid]; p != nil && !p.leaving {
			names[uid], p.stopping = p.name, true
		} else {
			unseen[uid] = true
		}
	}
	r.mu.Unlock()
	if dir.handing { // there may be a ReplicaSet, which would replace them
		if _, err := r.send(ctx, s, 0); err != nil {
			return err
		}
	}
	for uid, name := range names {
		if err := r.deletePod(ctx, s, name, uid, nil); err != nil {
			return err
		}
	}
	if len(unseen) > 0 { // created, and not told of yet
		if err := r.deleteUnseen(ctx, s, dir.hash, unseen); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.direct == dir {
		s.direct, s.written = nil, 0
		r.tidy(s)
	}
	return nil
}

// deleteUnseen deletes direct pods whose names are not known. They are found by their label.
func (r *Runtime) deleteUnseen(ctx context.Context, s *service, hash string, uids map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := r.cfg.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: appsv1.DefaultDeploymentUniqueLabelKey + "=" + hash,
	})
	if err != nil {
		return r.apiError(s.key, "list its pods", err)
	}
	for i := range list.Items {
		if p := &list.Items[i]; uids[string(p.UID)] && p.DeletionTimestamp == nil {
			if err := r.deletePod(ctx, s, p.Name, string(p.UID), nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// refusedPod tells whether an error is about the pod, and not about who may make one: a quota, or Pod Security.
func refusedPod(err error) bool {
	return apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "cannot create resource")
}
