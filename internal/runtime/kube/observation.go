// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
)

// observation is the input of a machine's decision: the cached objects of a service at one moment.
type observation struct {
	now time.Time
	// deployment is nil while it is unknown, or older than the last write.
	deployment *appsv1.Deployment
	sets       []*appsv1.ReplicaSet // ReplicaSets of the Deployment
	pods       int                  // pods of the service that exist, terminating ones included
	emptySince time.Time            // when the last pod went; zero if there was none
	starting   bool                 // a Start is under way
	// crowded: pods of many services are being started or handed over.
	crowded bool
}

// atRest reports whether pods can be created directly: no controller has anything to scale.
func atRest(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) bool {
	return d.Spec.Paused && scaledToZero(d) && seenByController(d) && len(sets) == 0
}

// seenByController reports whether the Deployment controller has seen the present spec of a Deployment.
func seenByController(d *appsv1.Deployment) bool { return d.Status.ObservedGeneration >= d.Generation }

// scaledToZero reports whether a Deployment wants no pod.
func scaledToZero(d *appsv1.Deployment) bool { return d.DeletionTimestamp == nil && replicasOf(d) == 0 }

// replicasOf returns the number of replicas of a Deployment; the default is one.
func replicasOf(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// parseVersion parses a resource version, which orders the states of an object; 0 if it is not a number.
func parseVersion(v string) uint64 {
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// revisionAnnotation is set by the Deployment controller on a ReplicaSet that it has recognized as its own.
const revisionAnnotation = "deployment.kubernetes.io/revision"
