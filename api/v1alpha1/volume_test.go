// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func withVolume(p PersistentVolume) *WangellService {
	s := &WangellService{}
	s.Name, s.Namespace = "db", "default"
	s.Spec = WangellServiceSpec{
		Image: "registry.example.com/db:v1", Port: 5432, Volumes: []Volume{{Persistent: &p}},
		VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
	}
	s.Spec.Volumes[0].Name = "data"
	return s
}

func TestPersistentVolumeIsChecked(t *testing.T) {
	quantity := func(s string) *resource.Quantity {
		q := resource.MustParse(s)
		return &q
	}
	for _, c := range []struct {
		p    PersistentVolume
		want string // of the error on one machine
	}{
		{PersistentVolume{}, ""},
		{PersistentVolume{Size: quantity("1Gi"), Retain: new(false), Name: "other.data", Shared: true}, ""},
		{PersistentVolume{Size: quantity("10")}, "less than 16Mi"},
		{PersistentVolume{Size: quantity("-1Gi")}, "less than 16Mi"},
		{PersistentVolume{Name: "../x"}, "persistent.name"},
		{PersistentVolume{Name: strings.Repeat("x", 200)}, "at most 127"},
		{PersistentVolume{Shared: true}, "needs name"},
	} {
		s := withVolume(c.p)
		if got := errorText(Validate(s)); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.p, got, c.want)
		}
		if got := errorText(ValidateCluster(s)); !strings.Contains(got, "PersistentVolumeClaim") {
			t.Errorf("%+v: on Kubernetes: %q", c.p, got)
		}
	}
	both := withVolume(PersistentVolume{})
	both.Spec.Volumes[0].EmptyDir = &corev1.EmptyDirVolumeSource{}
	if got := errorText(Validate(both)); !strings.Contains(got, "emptyDir and persistent") {
		t.Errorf("two kinds: %q", got)
	}
}

func errorText(errs ValidationErrors) string {
	if len(errs) == 0 {
		return ""
	}
	return errs.Error()
}

func TestPersistentVolumeHasOneWriterUnlessToldOtherwise(t *testing.T) {
	s := withVolume(PersistentVolume{})
	if got := s.Spec.Strategy(); got != UpdateRecreate || s.Spec.SharedVolume() != "data" {
		t.Errorf("%s, %q", got, s.Spec.SharedVolume())
	}
	s.Spec.VolumeMounts[0].ReadOnly = true
	if got := s.Spec.Strategy(); got != UpdateRolling {
		t.Errorf("mounted readOnly: %s", got)
	}
	if got := s.Spec.Volumes[0].VolumeName("db"); got != "db.data" {
		t.Errorf("%q", got)
	}
}

func TestRetentionOfAVolumeRestartsNothing(t *testing.T) {
	size, same, other := resource.MustParse("1Gi"), resource.MustParse("1024Mi"), resource.MustParse("2Gi")
	base := Hash(&withVolume(PersistentVolume{Size: &size}).Spec)
	for _, c := range []struct {
		p    PersistentVolume
		same bool
	}{
		{PersistentVolume{Size: &same, Retain: new(false)}, true},
		{PersistentVolume{Size: &other}, false},
		{PersistentVolume{Size: &size, Name: "x"}, false},
	} {
		if got := Hash(&withVolume(c.p).Spec); (got == base) != c.same {
			t.Errorf("%+v: the same hash: %t", c.p, got == base)
		}
	}
}
