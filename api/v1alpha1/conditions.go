// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// ConditionStalled means that a change of the spec cannot be completed by itself: the Deployment has made no progress
// for its progressDeadlineSeconds.
const ConditionStalled = "Stalled"

// ConditionRestricted means that not every client may connect, because of allowFrom or of NetworkPolicies.
const ConditionRestricted = "Restricted"

// ConditionGatePressure means that clients exceed a budget of wakes, or that a table of a node's gate is almost full.
const ConditionGatePressure = "GatePressure"

// ConditionSingleWriter means that no pod starts before nothing is left of the one before it (updateStrategy Recreate).
const ConditionSingleWriter = "SingleWriter"
