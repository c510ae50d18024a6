// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
)

func TestConditionsThatTellOfTroubleComeFirst(t *testing.T) {
	ready := func(is metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionReady, Status: is, Reason: reason, Message: message}
	}
	missing := ready(metav1.ConditionFalse, "RevisionMissing", "spec.traffic[0].revision: there is no shop-v2")
	stalled := metav1.Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue,
		Reason: "ProgressDeadlineExceeded", Message: "the rollout is stuck"}
	envoyless := func(reason string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionRequestsBalanced, Status: metav1.ConditionFalse, Reason: reason,
			Message: "no Envoy is ready"}
	}
	split := []v1alpha1.Revision{{Revision: "shop-v1", Percent: 100}}
	const missingSaid = "Condition Ready is False (RevisionMissing): spec.traffic[0].revision: there is no shop-v2."
	const stalledSaid = "Condition Stalled is True (ProgressDeadlineExceeded): the rollout is stuck."
	for name, c := range map[string]struct {
		state      lifecycle.State
		traffic    []v1alpha1.Revision
		message    string
		conditions []metav1.Condition
		shown      string
		line       string
		first      []string // sentences
	}{
		"a revision is missing": {lifecycle.Warm, split, "", []metav1.Condition{missing}, "RevisionMissing",
			missing.Message, []string{missingSaid}},
		"two": {lifecycle.Warm, nil, "", []metav1.Condition{stalled, missing}, "RevisionMissing", missing.Message,
			[]string{missingSaid, stalledSaid}},
		"a stuck rollout": {lifecycle.Warm, nil, "a layer is large", []metav1.Condition{stalled}, "Stalled",
			"a layer is large", []string{stalledSaid}},
		"what the message says": {lifecycle.Warm, nil, missing.Message, []metav1.Condition{missing}, "Warm",
			missing.Message, nil},
		"no Envoy": {lifecycle.Warm, nil, "", []metav1.Condition{envoyless("NoEnvoy")}, "NoEnvoy", "no Envoy is ready",
			[]string{"Condition RequestsBalanced is False (NoEnvoy): no Envoy is ready."}},
		"some Envoys are missing": {lifecycle.Warm, nil, "", []metav1.Condition{envoyless("NodesWithoutEnvoy")}, "Warm",
			"no Envoy is ready", []string{"Condition RequestsBalanced is False (NodesWithoutEnvoy): no Envoy is ready."}},
		"a wake that failed": {lifecycle.Failed, nil, "no", []metav1.Condition{
			ready(metav1.ConditionFalse, "WakeFailed", "no")}, "Failed", "no", nil},
		"none": {lifecycle.Cold, nil, "", []metav1.Condition{ready(metav1.ConditionTrue, "CanWake", ""),
			{Type: v1alpha1.ConditionAwake, Status: metav1.ConditionFalse, Reason: "Cold"},
			{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionFalse, Reason: "Progressing"}}, "Cold", "", nil},
	} {
		s := named("shop", now)
		st := &s.Service.Status
		st.State, st.Message, st.Conditions, s.Service.Spec.Traffic = c.state.String(), c.message, c.conditions, c.traffic
		if got := State(s); got != c.shown {
			t.Errorf("%s: shown as %q, want %q", name, got, c.shown)
		}
		if got := Message(s); got != c.line {
			t.Errorf("%s: message %q, want %q", name, got, c.line)
		}
		got := Why(s, nil, now)
		if len(got) <= len(c.first) || !slices.Equal(got[:len(c.first)], c.first) ||
			strings.HasPrefix(got[len(c.first)], "Condition ") {
			t.Errorf("%s: %q, want first %q", name, got, c.first)
		}
		var table strings.Builder
		err := Services(&table, []status.Status{s}, nil, nil, nil, now)
		if err != nil || !strings.Contains(table.String(), c.shown) || !strings.Contains(table.String(), c.line) {
			t.Errorf("%s: %v\n%s", name, err, table.String())
		}
	}
}
