// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime/kube"
)

// A rollout that the Deployment has given up is reported with its reason, until it goes on.
func TestRolloutThatIsStuckIsStalled(t *testing.T) {
	s := &v1alpha1.WangellService{}
	d := &appsv1.Deployment{}
	trouble := kube.Trouble{Reason: `pod app-2: image "a/b:2" cannot be pulled`}
	check := func(what string, status metav1.ConditionStatus, reason, message string) {
		t.Helper()
		s.Status = statusOf(s, outcome{deploy: d}, observed{}, trouble, time.Unix(1e9, 0))
		c := apimeta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionStalled)
		if c == nil || c.Status != status || c.Reason != reason || c.Message != message {
			t.Errorf("%s: %+v", what, c)
		}
	}
	check("no rollout", metav1.ConditionFalse, "Progressing", "")
	d.Status.Conditions = []appsv1.DeploymentCondition{{
		Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded",
		Message: `ReplicaSet "app-x" has timed out progressing.`,
	}}
	check("stuck", metav1.ConditionTrue, "ProgressDeadlineExceeded",
		`ReplicaSet "app-x" has timed out progressing.: pod app-2: image "a/b:2" cannot be pulled`)
	d.Status.Conditions[0].Status, d.Status.Conditions[0].Reason = corev1.ConditionTrue, "NewReplicaSetAvailable"
	check("it goes on", metav1.ConditionFalse, "Progressing", "")
}

// The Deployment of a service with one writer is paused, so it never gives up a rollout.
func TestSingleWriterThatDoesNotStartIsStalled(t *testing.T) {
	s, d := &v1alpha1.WangellService{}, &appsv1.Deployment{}
	d.Spec.Paused = true
	o := observed{known: true}
	o.status.Message = `image "a/b:2" cannot be pulled`
	for _, c := range []struct {
		state  lifecycle.State
		status metav1.ConditionStatus
		reason string
	}{
		{lifecycle.Waking, metav1.ConditionFalse, "Progressing"},
		{lifecycle.Failed, metav1.ConditionTrue, "WakeFailed"},
		{lifecycle.Warm, metav1.ConditionFalse, "Progressing"},
	} {
		o.status.State = c.state.String()
		s.Status = statusOf(s, outcome{deploy: d}, o, kube.Trouble{}, time.Unix(1e9, 0))
		got := apimeta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionStalled)
		message := map[metav1.ConditionStatus]string{metav1.ConditionTrue: o.status.Message}[c.status]
		if got.Status != c.status || got.Reason != c.reason || got.Message != message {
			t.Errorf("%v: %+v", c.state, got)
		}
	}
}

// A pod on a node that does not answer, beside which no other may run, comes before all else: a person has to decide.
func TestLostNodeIsTold(t *testing.T) {
	s := &v1alpha1.WangellService{}
	const what = "node n2 does not answer"
	o := observed{known: true, lost: what}
	o.status.State = lifecycle.Failed.String()
	s.Status = statusOf(s, outcome{}, o, kube.Trouble{}, time.Unix(1e9, 0))
	for name, status := range map[string]metav1.ConditionStatus{
		v1alpha1.ConditionStalled: metav1.ConditionTrue, v1alpha1.ConditionReady: metav1.ConditionFalse,
	} {
		c := apimeta.FindStatusCondition(s.Status.Conditions, name)
		if c == nil || c.Status != status || c.Reason != reasonNodeLost || c.Message != what {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if !isLost(&s.Status) {
		t.Error("no Event would be recorded")
	}
	o.lost = ""
	told := kube.Trouble{Reason: what, Lost: true}
	if s.Status = statusOf(s, outcome{}, o, told, time.Unix(1e9, 0)); !isLost(&s.Status) {
		t.Errorf("as the runtime reports: %+v", s.Status.Conditions)
	}
	if s.Status = statusOf(s, outcome{}, o, kube.Trouble{}, time.Unix(1e9, 0)); isLost(&s.Status) {
		t.Errorf("the node is back: %+v", s.Status.Conditions)
	}
}

// A service that was created again cannot be used while pods of the one before are ending.
func TestServiceIsNotReadyBeforeTheEarlierOneIsGone(t *testing.T) {
	s := &v1alpha1.WangellService{}
	o := observed{known: true, removing: true}
	o.status.State = lifecycle.Stopping.String()
	for _, want := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionTrue} {
		s.Status = statusOf(s, outcome{}, o, kube.Trouble{}, time.Unix(1e9, 0))
		if c := apimeta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady); c.Status != want {
			t.Errorf("%+v: %+v", o, c)
		}
		o.removing, o.status.State = false, lifecycle.Cold.String()
	}
}
