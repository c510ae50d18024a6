// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// action is one of the structs below: at most one request to the API server, or several of one kind at once. The caller
// of next carries it out and passes its result to done.
type action interface{ action() }

// wait: call next again when something else is observed, or at until. Zero: there is nothing to do.
type wait struct{ until time.Time }

// scale: set the Deployment's number of replicas.
type scale struct{ replicas int32 }

// setPaused: set spec.paused of the Deployment, only at this resource version unless that is empty.
type setPaused struct {
	paused  bool
	version string
}

// createPods: create n pods like this one, or find them if they exist already: an earlier request may have created them
// although its answer was lost. known are the UIDs of the direct pods that do not count.
type createPods struct {
	pod   *corev1.Pod
	n     int
	known map[string]bool
}

// deletePods: delete these direct pods, which have the label hash.
type deletePods struct {
	uids []string
	hash string
}

// createSet: create the ReplicaSet. One that exists is a success.
type createSet struct{ set *appsv1.ReplicaSet }

// deleteSet: delete the ReplicaSet as it was observed; its pods stay if orphan is set.
type deleteSet struct {
	set    *appsv1.ReplicaSet
	orphan bool
}

// giveUp: the sequence in progress cannot be completed at present. The text is the reason.
type giveUp struct{ reason string }

func (wait) action()       {}
func (scale) action()      {}
func (setPaused) action()  {}
func (createPods) action() {}
func (deletePods) action() {}
func (createSet) action()  {}
func (deleteSet) action()  {}
func (giveUp) action()     {}

// result is what came of an action.
type result struct {
	version uint64   // scale: the resource version that the write made
	created []string // createPods: the UIDs of the pods that exist afterwards
	err     error
}
