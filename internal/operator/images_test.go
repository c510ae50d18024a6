// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/wire"
)

// Nobody has used the services, and their status tells whether their images are there.
func TestStatusTellsWhetherImagesAreThere(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.d.mu.Lock()
	w.d.images = []wire.ImageReport{
		{Ref: "registry.example/app-good:1", State: wire.ImagePresent, Digest: "sha256:5", Size: 1},
		{Ref: "registry.example/app-typo:1", State: wire.ImageFailed, Reason: "NotFound",
			Message: "not found in registry (pull 404): check spec.image"},
	}
	w.d.mu.Unlock()
	w.apply("good")
	w.apply("typo")
	w.apply("lazy", func(s *v1alpha1.WangellServiceSpec) {
		s.ImagePull = &v1alpha1.ImagePull{When: v1alpha1.PullOnWake}
	})
	m := w.condition("good", v1alpha1.ConditionImageReady, metav1.ConditionTrue, "Present")
	if m != "on 1 of 1 nodes (node-1), digest sha256:5" {
		t.Errorf("good: %q", m)
	}
	m = w.condition("typo", v1alpha1.ConditionImageReady, metav1.ConditionFalse, "NotFound")
	want := `image "registry.example/app-typo:1" on node-1: not found in registry (pull 404): check spec.image`
	if m != want {
		t.Errorf("typo: %q", m)
	}
	w.condition("lazy", v1alpha1.ConditionImageReady, metav1.ConditionUnknown, "OnWake")
	w.until("the Event", func() bool { return hasAll(w.reasons("typo"), "ImageNotReady") })
	if s := w.service("typo").Status; s.State != "Cold" || s.Message != want {
		t.Errorf("status %+v", s)
	}
	// The API server refuses what cannot work.
	for text, change := range map[string]func(*v1alpha1.WangellServiceSpec){
		"imagePull.policy and imagePullPolicy differ": func(s *v1alpha1.WangellServiceSpec) {
			s.ImagePullPolicy, s.ImagePull = "Always", &v1alpha1.ImagePull{Policy: "Never"}
		},
		"want a number from 1 to 1000, or All": func(s *v1alpha1.WangellServiceSpec) {
			s.ImagePull = &v1alpha1.ImagePull{Nodes: new(intstr.FromInt32(0))}
		},
		"or All: write": func(s *v1alpha1.WangellServiceSpec) {
			s.ImagePull = &v1alpha1.ImagePull{Nodes: new(intstr.FromString("Most"))}
		},
	} {
		s := w.service("good")
		change(&s.Spec)
		if err := w.client.Update(t.Context(), s); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("want %q, got %v", text, err)
		}
	}
	s := w.service("good")
	s.Spec.ImagePull = &v1alpha1.ImagePull{Nodes: new(intstr.FromString("All"))}
	if err := w.client.Update(t.Context(), s); err != nil {
		t.Error(err)
	}
}
