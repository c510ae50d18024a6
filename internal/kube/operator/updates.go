// SPDX-License-Identifier: Apache-2.0

package operator

import (
	appsv1 "k8s.io/api/apps/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The functions below update an existing object to the wanted one, and report whether anything changed. Fields that the
// API server filled in or others added stay.

func updateMeta(is *metav1.ObjectMeta, want metav1.ObjectMeta) (changed bool) {
	for _, m := range []struct {
		is   *map[string]string
		want map[string]string
	}{{&is.Labels, want.Labels}, {&is.Annotations, want.Annotations}} {
		for k, v := range m.want {
			if (*m.is)[k] != v {
				*m.is = with(*m.is, k, v)
				changed = true
			}
		}
	}
	return changed
}

func updateDeployment(is, want *appsv1.Deployment) bool {
	same := is.Annotations[madeFrom] == want.Annotations[madeFrom] &&
		equality.Semantic.DeepDerivative(want.Spec.Template, is.Spec.Template) &&
		equality.Semantic.DeepDerivative(want.Spec.Strategy, is.Spec.Strategy)
	if changed := updateMeta(&is.ObjectMeta, want.ObjectMeta); same {
		return changed
	}
	is.Spec.Template, is.Spec.Strategy = want.Spec.Template, want.Spec.Strategy
	is.Spec.RevisionHistoryLimit = want.Spec.RevisionHistoryLimit
	return true
}

func updateSlice(is, want *discoveryv1.EndpointSlice) bool {
	same := is.Annotations[madeFrom] == want.Annotations[madeFrom] &&
		equality.Semantic.DeepEqual(want.Endpoints, is.Endpoints) && equality.Semantic.DeepEqual(want.Ports, is.Ports)
	if changed := updateMeta(&is.ObjectMeta, want.ObjectMeta); same {
		return changed
	}
	is.Endpoints, is.Ports = want.Endpoints, want.Ports
	return true
}
