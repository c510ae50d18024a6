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
	"wangell.loutres.me/internal/runtime/kube"
)

// A rollout that the Deployment has given up is told with its reason, until it goes on.
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
