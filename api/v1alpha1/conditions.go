// SPDX-License-Identifier: Apache-2.0

package v1alpha1

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

// ConditionSingleWriter means that no pod starts until nothing of its predecessor is left (updateStrategy Recreate).
const ConditionSingleWriter = "SingleWriter"

// ConditionRequestsReserved means that the nodes of all running pods have reserved what these request. It is false if a
// pod that was frozen does not get its requests back. Only services with sleep.freezeAfter have it.
const ConditionRequestsReserved = "RequestsReserved"
