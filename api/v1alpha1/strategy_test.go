// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
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
	}
}
