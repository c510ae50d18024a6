// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"
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
	share := corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "nfs.csi.k8s.io"}}
	secrets := corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "secrets-store.csi.k8s.io", ReadOnly: new(true)}}
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
		{"inline CSI volume", share, false, UpdateRecreate},
		{"read-only inline CSI volume", secrets, false, UpdateRolling},
	} {
		volumes := []corev1.Volume{{Name: "data", VolumeSource: c.source}}
		mounts := []corev1.VolumeMount{{Name: "data", MountPath: "/data", ReadOnly: c.readOnly}}
		plain := WangellServiceSpec{Image: "x", Volumes: VolumesOf(volumes...), VolumeMounts: mounts}
		if got := plain.Strategy(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		template := WangellServiceSpec{Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Volumes: volumes, Containers: []corev1.Container{{Name: "app"}, {Name: "side", VolumeMounts: mounts}},
		}}}
		if got := template.Strategy(); got != c.want {
			t.Errorf("%s in a template: %s, want %s", c.name, got, c.want)
		}
		unused := WangellServiceSpec{Image: "x", Volumes: VolumesOf(volumes...)}
		if got := unused.Strategy(); got != UpdateRolling {
			t.Errorf("%s that is not mounted: %s", c.name, got)
		}
		chosen := WangellServiceSpec{MaxReplicas: 2, Volumes: VolumesOf(volumes...), VolumeMounts: mounts}
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

// Access modes are those of the claim, by which its author chose them. A claim that is not there counts as one for a
// single writer.
func TestAccessModesOfAClaimDecideTheStrategy(t *testing.T) {
	type modes = []corev1.PersistentVolumeAccessMode
	short := map[string]corev1.PersistentVolumeAccessMode{"RWO": corev1.ReadWriteOnce, "RWX": corev1.ReadWriteMany,
		"ROX": corev1.ReadOnlyMany, "RWOP": corev1.ReadWriteOncePod, "new": "ReadWriteSome"}
	set := func(s UpdateStrategy) func(*WangellServiceSpec) {
		return func(spec *WangellServiceSpec) { spec.UpdateStrategy = s }
	}
	several := func(s *WangellServiceSpec) { s.MaxReplicas = 2 }
	for _, c := range []struct {
		volumes string // claim:mode,mode ...; a folder of the node has no modes
		change  func(*WangellServiceSpec)
		want    UpdateStrategy
		reason  string
		message string
	}{
		{"a:RWO", nil, UpdateRecreate, ReasonOneWriter, `volume "a" is for one writer: PersistentVolumeClaim a asks for ` +
			"ReadWriteOnce"},
		{"a:RWOP", nil, UpdateRecreate, ReasonOneWriter, ""},
		{"a:RWX", nil, UpdateRolling, ReasonManyWriters, "PersistentVolumeClaim a asks for ReadWriteMany"},
		{"a:RWO,RWX", nil, UpdateRolling, ReasonManyWriters, "ReadWriteOnce, ReadWriteMany"},
		{"a:ROX", nil, UpdateRolling, ReasonManyWriters, ""},
		{"a:ROX,RWO", nil, UpdateRecreate, ReasonOneWriter, ""},
		{"a:new", nil, UpdateRecreate, ReasonOneWriter, ""},
		{"a:", nil, UpdateRecreate, ReasonOneWriter, "PersistentVolumeClaim a are not known"},
		{"a:RWX b:RWO", nil, UpdateRecreate, ReasonOneWriter, `"b"`},
		{"a:RWX b:RWX", nil, UpdateRolling, ReasonManyWriters, ""},
		{"a:RWX folder", nil, UpdateRecreate, ReasonOneWriter, `"folder"`},
		{"a:RWO", several, UpdateRolling, ReasonSeveralPods, "maxReplicas"},
		{"a:RWX", set(UpdateRecreate), UpdateRecreate, ReasonChosen, "updateStrategy"},
		{"a:RWO", set(UpdateRolling), UpdateRolling, ReasonChosen, "updateStrategy"},
		{"", nil, UpdateRolling, ReasonNoVolume, ""},
	} {
		s, claims := WangellServiceSpec{Image: "x"}, map[string]modes{}
		for word := range strings.FieldsSeq(c.volumes) {
			name, list, isClaim := strings.Cut(word, ":")
			v := corev1.Volume{Name: name}
			if isClaim {
				v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
			} else {
				v.HostPath = &corev1.HostPathVolumeSource{Path: "/srv"}
			}
			for mode := range strings.SplitSeq(list, ",") {
				if list != "" {
					claims[name] = append(claims[name], short[mode])
				}
			}
			s.Volumes = append(s.Volumes, Volume{Volume: v})
			s.VolumeMounts = append(s.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
		}
		if c.change != nil {
			c.change(&s)
		}
		asked := map[string]bool{}
		got := s.Decide(func(name string) modes { asked[name] = true; return claims[name] })
		if got.Strategy != c.want || got.Reason != c.reason || !strings.Contains(got.Message, c.message) {
			t.Errorf("%q: %+v, want %s because of %s: %q", c.volumes, got, c.want, c.reason, c.message)
		}
		for claim := range asked {
			if !slices.Contains(s.Claims(), claim) {
				t.Errorf("%q: depends on claim %s, which is not among %v", c.volumes, claim, s.Claims())
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
			s.Volumes = VolumesOf(corev1.Volume{Name: "data", VolumeSource: folder})
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
