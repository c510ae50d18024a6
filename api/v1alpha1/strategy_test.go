// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestVolumeThatTwoPodsMayWriteMakesTheStrategyRecreate(t *testing.T) {
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	readOnlyClaim := corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: true},
	}
	folder := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}
	socket := corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: "/run/x.sock", Type: new(corev1.HostPathSocket)},
	}
	scratch := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	secret := corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x"}}
	nfs := corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "n", Path: "/"}}
	for _, c := range []struct {
		name     string
		source   corev1.VolumeSource
		readOnly bool
		want     UpdateStrategy
	}{
		{"claim", claim, false, UpdateRecreate},
		{"claim mounted read-only", claim, true, UpdateRolling},
		{"read-only claim", readOnlyClaim, false, UpdateRolling},
		{"hostPath", folder, false, UpdateRecreate},
		{"hostPath mounted read-only", folder, true, UpdateRolling},
		{"socket", socket, false, UpdateRolling},
		{"emptyDir", scratch, false, UpdateRolling},
		{"secret", secret, false, UpdateRolling},
		{"nfs", nfs, false, UpdateRecreate},
	} {
		volumes := []corev1.Volume{{Name: "data", VolumeSource: c.source}}
		mounts := []corev1.VolumeMount{{Name: "data", MountPath: "/data", ReadOnly: c.readOnly}}
		plain := WangellServiceSpec{Image: "x", Volumes: volumes, VolumeMounts: mounts}
		if got := plain.Strategy(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		template := WangellServiceSpec{Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Volumes: volumes, Containers: []corev1.Container{{Name: "app"}, {Name: "side", VolumeMounts: mounts}},
		}}}
		if got := template.Strategy(); got != c.want {
			t.Errorf("%s in a template: %s, want %s", c.name, got, c.want)
		}
		unused := WangellServiceSpec{Image: "x", Volumes: volumes}
		if got := unused.Strategy(); got != UpdateRolling {
			t.Errorf("%s that is not mounted: %s", c.name, got)
		}
		chosen := WangellServiceSpec{MaxReplicas: 2, Volumes: volumes, VolumeMounts: mounts}
		if got := chosen.Strategy(); got != UpdateRolling {
			t.Errorf("%s with two pods: %s", c.name, got)
		}
		for _, want := range []UpdateStrategy{UpdateRecreate, UpdateRolling} {
			explicit := plain
			explicit.UpdateStrategy = want
			if got := explicit.Strategy(); got != want {
				t.Errorf("%s with updateStrategy %s: %s", c.name, want, got)
			}
		}
	}
}

func TestRecreateAllowsOnePod(t *testing.T) {
	const one = "write maxReplicas: 1, or updateStrategy: RollingUpdate"
	folder := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}
	for name, c := range map[string]struct {
		change func(*WangellServiceSpec)
		want   string // what the error offers; empty if there is none
	}{
		"one pod":   {func(s *WangellServiceSpec) { s.UpdateStrategy = UpdateRecreate }, ""},
		"minimum 1": {func(s *WangellServiceSpec) { s.UpdateStrategy, s.MinReplicas = UpdateRecreate, 1 }, ""},
		"scaling": {func(s *WangellServiceSpec) {
			s.UpdateStrategy, s.Scaling = UpdateRecreate, &Scaling{Target: 5}
		}, one},
		"two pods": {func(s *WangellServiceSpec) { s.UpdateStrategy, s.MaxReplicas = UpdateRecreate, 2 }, one},
		"minimum 2": {func(s *WangellServiceSpec) {
			s.UpdateStrategy, s.MaxReplicas, s.MinReplicas = UpdateRecreate, 2, 2
		}, "write maxReplicas: 1 and minReplicas: 1, or updateStrategy: RollingUpdate"},
		"two pods that roll": {func(s *WangellServiceSpec) { s.UpdateStrategy, s.MaxReplicas = UpdateRolling, 2 }, ""},
		"one writer that rolls": {func(s *WangellServiceSpec) {
			s.UpdateStrategy = UpdateRolling
			s.Volumes = []corev1.Volume{{Name: "data", VolumeSource: folder}}
			s.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		}, ""},
		"another word": {func(s *WangellServiceSpec) { s.UpdateStrategy = "recreate" }, "Recreate"},
	} {
		s := &WangellService{}
		s.Name, s.Namespace = "db", "default"
		s.Spec = WangellServiceSpec{Image: "registry.example.com/db:v1", Port: 5432}
		c.change(&s.Spec)
		for place, validate := range map[string]func(*WangellService) ValidationErrors{
			"one machine": Validate, "Kubernetes": ValidateCluster,
		} {
			errs := validate(s)
			switch {
			case c.want == "" && len(errs) > 0:
				t.Errorf("%s, %s: %v", name, place, errs)
			case c.want != "" && (len(errs) != 1 || !strings.Contains(errs.Error(), "spec.updateStrategy: ") ||
				!strings.Contains(errs.Error(), c.want)):
				t.Errorf("%s, %s: %v", name, place, errs)
			}
		}
	}
}
