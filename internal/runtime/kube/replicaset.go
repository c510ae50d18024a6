package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"

	"wangell.loutres.me/api/v1alpha1"
)

// Annotations of the Deployment controller (pkg/controller/deployment/util of Kubernetes). A ReplicaSet has the last two
// of the Deployment that it was scaled for. While it has pods and desired-replicas is not the Deployment's number, the
// Deployment controller takes that for scaling under way and begins no rollout, so they are written with the number.
const (
	revisionAnnotation = "deployment.kubernetes.io/revision"
	desiredAnnotation  = "deployment.kubernetes.io/desired-replicas"
	maxAnnotation      = "deployment.kubernetes.io/max-replicas"
)

// hastenTimeout bounds the request that only saves time: after it, the Deployment controller was quicker.
const hastenTimeout = 200 * time.Millisecond

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

// currentSet returns the ReplicaSet that the Deployment controller would scale from what it has to replicas, and to
// nothing else: the one of the Deployment's template, if no other has replicas, and the Deployment controller has seen
// everything but the number. It returns nil if there is no such one, or if it has that many already. sets are the
// Deployment's own.
func currentSet(d *appsv1.Deployment, sets []*appsv1.ReplicaSet, replicas int32) *appsv1.ReplicaSet {
	if d.DeletionTimestamp != nil || d.Spec.Paused || d.Status.ObservedGeneration < d.Generation {
		return nil
	}
	var current *appsv1.ReplicaSet
	for _, set := range sets {
		switch owner := metav1.GetControllerOfNoCopy(set); {
		case owner == nil || owner.UID != d.UID || set.Spec.Replicas == nil:
		case isCurrent(d, set):
			if current != nil || set.DeletionTimestamp != nil {
				return nil
			}
			current = set
		case *set.Spec.Replicas > 0:
			return nil // a rollout
		}
	}
	if current == nil || *current.Spec.Replicas >= replicas {
		return nil
	}
	return current
}

// isCurrent tells whether a ReplicaSet of a Deployment is that of its present template. The revision is compared as well
// as the hash of the spec, as other things than the spec change a template, and the Deployment's revision is late.
func isCurrent(d *appsv1.Deployment, set *appsv1.ReplicaSet) bool {
	revision, hash := d.Annotations[revisionAnnotation], appsv1.DefaultDeploymentUniqueLabelKey
	return revision != "" && set.Annotations[revisionAnnotation] == revision && set.Labels[hash] != "" &&
		set.Labels[v1alpha1.LabelSpecHash] == d.Spec.Template.Labels[v1alpha1.LabelSpecHash]
}

// findSet returns the ReplicaSet that may be given a service's new number of replicas once the Deployment has it; nil if
// that is to be left to the Deployment controller. The lock is held.
func (r *Runtime) findSet(s *service, replicas int32) (*appsv1.Deployment, *appsv1.ReplicaSet) {
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
	return d, currentSet(d, sets, replicas)
}

// hasten scales a ReplicaSet as the Deployment controller is about to, which would have its pods made later. The
// Deployment has the number already: one that had another would have it undone. Nothing depends on its success.
func (r *Runtime) hasten(ctx context.Context, s *service, d *appsv1.Deployment, set *appsv1.ReplicaSet, replicas int32) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, hastenTimeout)
	defer cancel()
	_, err := r.cfg.Client.AppsV1().ReplicaSets(s.namespace).Patch(ctx, set.Name, types.JSONPatchType, scalePatch(d, set, replicas), metav1.PatchOptions{})
	r.log.Debug("ReplicaSet scaled", "service", string(s.key), "name", set.Name, "replicas", replicas, "took", time.Since(begin), "error", err)
}

// scalePatch scales a ReplicaSet if nobody else has.
func scalePatch(d *appsv1.Deployment, set *appsv1.ReplicaSet, replicas int32) []byte {
	type step struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	const annotations = "/metadata/annotations/deployment.kubernetes.io~1"
	patch, err := json.Marshal([]step{
		{"test", "/metadata/uid", set.UID},
		{"test", "/spec/replicas", *set.Spec.Replicas},
		{"test", annotations + "revision", set.Annotations[revisionAnnotation]},
		{"replace", "/spec/replicas", replicas},
		{"add", annotations + "desired-replicas", strconv.Itoa(int(replicas))},
		{"add", annotations + "max-replicas", strconv.Itoa(int(replicas + surge(d, replicas)))},
	})
	if err != nil {
		panic(fmt.Sprintf("kube: patch of a ReplicaSet: %v", err)) // it is all strings and numbers
	}
	return patch
}

// surge is how many more pods than replicas a Deployment may have in a rollout.
func surge(d *appsv1.Deployment, replicas int32) int32 {
	u := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || u == nil || u.MaxSurge == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(u.MaxSurge, int(replicas), true)
	if err != nil {
		return 0
	}
	return int32(n)
}
