// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
)

// A wake must not wait for the Deployment controller and the ReplicaSet controller, which each hear of a change,
// reads, and writes, one after the other. So the pods of a wake are created here, from the template of the Deployment,
// and are handed over to one of its ReplicaSets when the wake is over. Until then they are direct pods.
//
//	at rest         The Deployment is paused, wants no pod, and has no ReplicaSet: nothing below can scale one.
//	direct          Pods exist with the labels that a ReplicaSet's selector will match, and without a controller.
//	handing over    The Deployment is scaled to their number; it is paused, so nothing happens. A ReplicaSet of its
//	                template is created, which selects the pods and adopts them. Once the Deployment recognizes the
//	                ReplicaSet as its own, it is resumed.
//	managed         The Deployment is one like any other: its number of replicas is written to it.
//
// The order makes this safe: no controller ever sees a pod too many or too few, whichever change it hears of last.
// (pkg/controller/deployment/sync.go of Kubernetes: the ReplicaSets of a paused Deployment are scaled, but none is
// created; pkg/controller/controller_ref_manager.go: a pod that matches a selector and has no controller is adopted.)
// The exception is a ReplicaSet controller that sees the ReplicaSet before the pods: see isSurplus.

const (
	// handOverDelay is the time from the creation of the last direct pod to the hand-over: the work that it causes in
	// the API server and its controllers must not slow down the wake.
	handOverDelay = 2 * time.Second
	// handOverLatest is the time from the creation of the first direct pod to the hand-over although a wake is still under
	// way: until then nothing in the cluster replaces a pod that is lost with its node.
	handOverLatest = 10 * time.Second
	// handOverCrowded is handOverLatest while pods of many services are being started or handed over: see observation.
	handOverCrowded = time.Minute
	// crowdedPause is the pause after which it is looked again whether there are still as many.
	crowdedPause = time.Second
	// crowdedStarts is how many Starts under way keep pods from being handed over, and mostHandOvers how many hand-overs
	// may be under way. A hand-over takes the Deployment controller about six requests, and it makes 20 a second unless
	// kube-controller-manager is told otherwise (--kube-api-qps).
	crowdedStarts = 5
	mostHandOvers = 3
	// restDelay is the time from the end of the last pod until its Deployment is brought to rest.
	restDelay = 200 * time.Millisecond
	// observeTimeout bounds the wait for the caches, or the Deployment controller, to see a change.
	observeTimeout = 10 * time.Second
	// recognizeTimeout bounds the wait for a Deployment to recognize a ReplicaSet of its own template. If the Deployment
	// is resumed before, it replaces the pods.
	recognizeTimeout = time.Minute
	// surplusTimeout is how long after a hand-over a ReplicaSet controller may not see the pods of the wake yet: client-go
	// lists again after at most 30 s, and somewhat later by chance.
	surplusTimeout = time.Minute
)

// unknown is a number of replicas whose write was not confirmed: it is written again.
const unknown = -1

// machine decides how a service gets its wanted number of pods, and what happens to its Deployment afterwards. It is
// pure: observations and the time go in, actions come out, and the result of each is reported back with done. It is
// not safe for concurrent use.
type machine struct {
	// throughDeployment: create no pod directly.
	throughDeployment bool
	// single: the Deployment does not manage the pod; it is brought to rest and stays there; see single.go.
	single bool

	want    int32  // replicas that the service should have
	excess  int32  // replicas kept in the write until the victim pods carry their deletion cost
	written int32  // replicas of the Deployment, or number of direct pods, as far as known; else unknown
	uid     string // of the Deployment; empty while there is none
	version uint64 // resource version of the Deployment: older ones are not looked at
	sending bool   // the number is being written: observations of it may be stale
	direct  *direct
	epoch   int // counts deleted Deployments: results for one say nothing about the next

	stage    stage
	deadline time.Time          // of a stage that waits
	target   int32              // replicas that the Deployment is being scaled to
	scaled   uint64             // the resource version of that write
	adopter  *appsv1.ReplicaSet // adopts the pods, as it was created; nil outside a hand-over
	doomed   []*appsv1.ReplicaSet
	handed   struct { // the last hand-over
		hash  string // pod-template-hash of its pods
		until time.Time
	}
}

// direct is the state of a service's direct pods.
type direct struct {
	hash string          // the ReplicaSet will select them by this label pod-template-hash
	uids map[string]bool // of those that exist, or are about to
	// from is the Deployment as it was when its template was used; nil if another controller created the pods.
	from *appsv1.Deployment
	// specHash is the label of pods that another controller created.
	specHash    string
	first, last time.Time // when the first and the last were created
	announced   bool      // the Deployment may have been scaled to their number
}

// stage is a step of a sequence. A sequence begins and ends with idle.
type stage uint8

const (
	idle stage = iota
	scaling
	creating

	// The service sleeps before its direct pods were handed over.
	dropScaling
	dropDeleting

	// Direct pods are handed over.
	handScaling
	handObserving // until the Deployment controller has seen the number
	handCreating

	// A paused Deployment is resumed; also the last part of a hand-over.
	recognizing // until the Deployment has recognized its ReplicaSets
	resuming
	resumeObserving // until the cache has seen it

	// A Deployment without pods is brought to rest.
	restPausing
	restObserving // until the Deployment controller has seen that it is paused
	restDeleting
	restEnding // until the cache has no ReplicaSet of it
)

// task is what begins a sequence.
type task uint8

const (
	noTask task = iota
	writeTask
	convertTask // a ReplicaSet has single pods: they stay, and it is deleted
	handOverTask
	resumeTask
	restTask
)
