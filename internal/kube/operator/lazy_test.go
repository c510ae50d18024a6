// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	"wangell.loutres.me/api/v1alpha1"
)

// The pods of a service that pulls lazily have the RuntimeClass, and the annotation for kubelet's pulls; those of
// others keep what their template has.
func TestPodsOfLazyPullsHaveTheRuntimeClass(t *testing.T) {
	s := example(nil)
	lazy := DeploymentOf(s, s.Spec.Strategy(), true)
	class := lazy.Spec.Template.Spec.RuntimeClassName
	handler := lazy.Spec.Template.Annotations[v1alpha1.AnnotationHandler]
	if class == nil || *class != "wangell-lazy" || handler != "wangell-lazy" {
		t.Errorf("%v, %q", class, handler)
	}
	full := DeploymentOf(s, s.Spec.Strategy(), false)
	class, handler = full.Spec.Template.Spec.RuntimeClassName, full.Spec.Template.Annotations[v1alpha1.AnnotationHandler]
	if class != nil || handler != "" {
		t.Errorf("in full: %v, %q", class, handler)
	}
	if !updateDeployment(full, lazy) || *full.Spec.Template.Spec.RuntimeClassName != "wangell-lazy" {
		t.Error("a Deployment is not updated")
	}
	back := DeploymentOf(s, s.Spec.Strategy(), false)
	if !updateDeployment(lazy, back) || lazy.Spec.Template.Spec.RuntimeClassName != nil {
		t.Error("a Deployment keeps the class")
	}
}
