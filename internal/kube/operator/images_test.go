// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
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

// What pods of a service lose with each sleep is an Event and a condition, until the manifest says that it is right.
func TestVolumesOfAnImageThatAreLostHaveACondition(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.d.mu.Lock()
	w.d.images = []wire.ImageReport{{Ref: "registry.example/app-db:1", State: wire.ImagePresent, Digest: "sha256:5",
		Volumes: []string{"/data", "/log"}}}
	w.d.mu.Unlock()
	w.apply("db", func(s *v1alpha1.WangellServiceSpec) {
		s.Volumes = []v1alpha1.Volume{{Volume: corev1.Volume{Name: "log"}}}
		s.Volumes[0].EmptyDir = &corev1.EmptyDirVolumeSource{}
		s.VolumeMounts = []corev1.VolumeMount{{Name: "log", MountPath: "/log"}}
	})
	const name = v1alpha1.ConditionVolumesNotKept
	m := w.condition("db", name, metav1.ConditionTrue, "NotMounted")
	if !strings.HasPrefix(m, "what it writes to /data is lost when a pod ends: ") {
		t.Errorf("condition: %q", m)
	}
	w.until("the Event", func() bool { return hasAll(w.reasons("db"), "VolumesNotKept") })
	w.change("db", func(s *v1alpha1.WangellServiceSpec) { s.ImageVolumes = v1alpha1.ImageVolumesDiscard })
	w.until("the condition goes", func() bool {
		return apimeta.FindStatusCondition(w.service("db").Status.Conditions, name) == nil
	})
}

// The pods of a service run the content that its tag stood for when it was resolved, also under the next leader. Pods
// that run are not replaced for that.
func TestPodsRunTheDigestThatWasResolved(t *testing.T) {
	w := newWorld(t, nil)
	stop := w.run()
	digest := "sha256:" + strings.Repeat("5", 64)
	w.d.mu.Lock()
	for _, name := range []string{"asleep", "awake"} {
		w.d.images = append(w.d.images, wire.ImageReport{
			Ref: "registry.example/app-" + name + ":1", State: wire.ImagePresent, Digest: digest, Size: 1,
		})
	}
	w.d.mu.Unlock()
	image := func(name string) string {
		var d appsv1.Deployment
		if !w.get(name, &d) {
			return ""
		}
		return d.Spec.Template.Spec.Containers[0].Image
	}
	w.apply("asleep")
	w.apply("awake", func(s *v1alpha1.WangellServiceSpec) { s.MinReplicas = 1 })
	const fixed = "registry.example/app-asleep@"
	w.until("the next pods run the digest", func() bool { return image("asleep") == fixed+digest })
	resolved := func(name string) bool {
		return slices.Equal(w.service(name).Status.ImageDigests,
			[]v1alpha1.ImageDigest{{Image: "registry.example/app-" + name + ":1", Digest: digest}})
	}
	w.until("both are resolved", func() bool { return resolved("asleep") && resolved("awake") })
	w.condition("awake", v1alpha1.ConditionAwake, metav1.ConditionTrue, "Warm")
	if got := image("awake"); got != "registry.example/app-awake:1" {
		t.Errorf("the template of running pods was changed: %s", got)
	}
	w.change("awake", func(s *v1alpha1.WangellServiceSpec) { s.WorkingDir = "/tmp" })
	const awake = "registry.example/app-awake@"
	w.until("a change takes the digest, too", func() bool { return image("awake") == awake+digest })

	// The next leader's daemons tell of a tag that has moved.
	stop()
	w.d.mu.Lock()
	for i := range w.d.images {
		w.d.images[i].Digest = "sha256:" + strings.Repeat("6", 64)
	}
	w.d.images = append(w.d.images, wire.ImageReport{Ref: fixed + digest, State: wire.ImagePresent, Digest: digest})
	w.d.mu.Unlock()
	w.run()
	w.condition("asleep", v1alpha1.ConditionImageReady, metav1.ConditionTrue, "Present")
	if !resolved("asleep") || image("asleep") != fixed+digest {
		t.Errorf("the next leader resolved it again: %s, %+v", image("asleep"), w.service("asleep").Status.ImageDigests)
	}
	w.change("asleep", func(s *v1alpha1.WangellServiceSpec) { s.ImagePullPolicy = corev1.PullAlways })
	w.until("Always takes the tag", func() bool { return image("asleep") == "registry.example/app-asleep:1" })
}

// While pods run, only a change of something else, or somebody's, changes the images of a Deployment.
func TestImagesOfRunningPodsAreKept(t *testing.T) {
	s := example(nil)
	plain := DeploymentOf(s, s.Spec.Strategy(), false)
	digests := []v1alpha1.ImageDigest{{Image: s.Spec.Image, Digest: "sha256:" + strings.Repeat("5", 64)}}
	for what, c := range map[string]struct {
		asleep, kept bool
		change       func(*appsv1.Deployment)
	}{
		"asleep":      {asleep: true, change: func(*appsv1.Deployment) {}},
		"awake":       {kept: true, change: func(*appsv1.Deployment) {}},
		"not at rest": {asleep: true, kept: true, change: func(d *appsv1.Deployment) { d.Spec.Paused = false }},
		"wants pods": {asleep: true, kept: true, change: func(d *appsv1.Deployment) {
			d.Spec.Replicas = new(int32(1))
		}},
		"another spec":      {change: func(d *appsv1.Deployment) { d.Annotations[madeFrom] = "x" }},
		"somebody's change": {change: func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "other" }},
	} {
		is, want := plain.DeepCopy(), plain.DeepCopy()
		c.change(is)
		fixImages(want, digests)
		fixed := want.Spec.Template.Spec.Containers[0].Image
		keepImages(is, want, plain, c.asleep)
		got := want.Spec.Template.Spec.Containers[0].Image
		if c.kept && got != s.Spec.Image || !c.kept && (got != fixed || got == s.Spec.Image) {
			t.Errorf("%s: %s", what, got)
		}
	}
}
