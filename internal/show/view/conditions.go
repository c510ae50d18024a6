// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/status"
)

// troubling are the conditions that tell of trouble, with the status that does, the most important first. Others only
// describe the service: one that sleeps is not Awake, and one that is not being changed is not Progressing.
var troubling = []struct {
	name string
	is   metav1.ConditionStatus
}{
	{v1alpha1.ConditionReady, metav1.ConditionFalse},
	{v1alpha1.ConditionStalled, metav1.ConditionTrue},
	{v1alpha1.ConditionAddressAssigned, metav1.ConditionFalse},
	{v1alpha1.ConditionScheduled, metav1.ConditionFalse},
	{v1alpha1.ConditionRequestsBalanced, metav1.ConditionFalse},
	{v1alpha1.ConditionImageReady, metav1.ConditionFalse},
}

// troubles returns the conditions of a service that tell of trouble, each message once, without what its state and its
// message say.
func troubles(s status.Status) (all []metav1.Condition) {
	said := []string{s.Service.Status.Message}
	for _, t := range troubling {
		for _, c := range s.Service.Status.Conditions {
			if c.Type == t.name && c.Status == t.is && c.Reason != reasonWakeFailed && !slices.Contains(said, c.Message) {
				all, said = append(all, c), append(said, c.Message)
			}
		}
	}
	return all
}

// reasonWakeFailed is the reason of conditions that repeat the state Failed.
const reasonWakeFailed = "WakeFailed"

// State is the state of a service for a table: in its place, the reason why it is not ready, Stalled, or that no node
// balances its requests.
func State(s status.Status) string {
	for _, c := range troubles(s) {
		switch {
		case c.Type == v1alpha1.ConditionReady, c.Reason == v1alpha1.ReasonNoEnvoy:
			return c.Reason
		case c.Type == v1alpha1.ConditionStalled:
			return c.Type
		}
	}
	return cmp.Or(s.Service.Status.State, "-")
}

// Message is what there is to say of a service in one line: its message or else its first condition that tells of
// trouble; empty if there is nothing.
func Message(s status.Status) string {
	if m := s.Service.Status.Message; m != "" {
		return m
	}
	for _, c := range troubles(s) {
		return c.Message
	}
	return ""
}
