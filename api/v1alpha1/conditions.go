// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Types of Conditions.
const (
	// ConditionReady means that a new client is served, after a wake if necessary.
	ConditionReady = "Ready"
	// ConditionAwake means that at least one pod serves.
	ConditionAwake = "Awake"
	// ConditionAddressAssigned means that the service has its address.
	ConditionAddressAssigned = "AddressAssigned"
	// ConditionProgressing is True while a change of the spec is being applied. It is False with reason Complete once
	// the change is applied, and False with another reason if it cannot be.
	ConditionProgressing = "Progressing"
	// ConditionScheduled means that every wanted pod is assigned to a node.
	ConditionScheduled = "Scheduled"
)

// ConditionStalled means that the service does not go on by itself: the Deployment has made no progress with a changed
// spec for its progressDeadlineSeconds, the only pod that may write its volume does not start, or it is on a node that
// does not answer.
const ConditionStalled = "Stalled"

// ConditionImageReady means that a node on which the pods could run has the images of the service, so that a wake does
// not pull them.
const ConditionImageReady = "ImageReady"

// ConditionRestricted means that not every client may connect, because of allowFrom or of NetworkPolicies.
const ConditionRestricted = "Restricted"

// ConditionGatePressure means that clients exceed a budget of wakes, or that a table of a node's gate is almost full.
const ConditionGatePressure = "GatePressure"

// ConditionVolumesNotKept means that the image declares volumes at which nothing is mounted, so that what pods write
// there is lost with each of them. Only services with such an image have it.
const ConditionVolumesNotKept = "VolumesNotKept"

// ConditionSingleWriter means that no pod starts until nothing of its predecessor is left (updateStrategy Recreate).
const ConditionSingleWriter = "SingleWriter"

// ConditionRequestsReserved means that the nodes of all running pods have reserved what these request. It is false if a
// pod that was frozen does not get its requests back. Only services with sleep.freezeAfter have it.
const ConditionRequestsReserved = "RequestsReserved"

// ConditionRequestsBalanced means that each request gets a pod, as an Envoy serves on every node. It is false if some
// node has none: connections that come through it are balanced instead. Only services with balancing.level Request or
// with traffic have it.
const ConditionRequestsBalanced = "RequestsBalanced"

// Reasons of ConditionRequestsBalanced.
const (
	// ReasonBalanced: every node with a daemon has an Envoy.
	ReasonBalanced = "Balanced"
	// ReasonNoEnvoy: no node has one.
	ReasonNoEnvoy = "NoEnvoy"
	// ReasonNodesWithoutEnvoy: some nodes have one, and others have none.
	ReasonNodesWithoutEnvoy = "NodesWithoutEnvoy"
)
