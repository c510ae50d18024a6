// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestVolumesOfAnImageAreThoseWithoutAMount(t *testing.T) {
	for _, c := range []struct {
		declared, mounts, want string
	}{
		{"", "", ""},
		{"/data", "", "/data"},
		{"/data/ /a", "", "/a /data"},
		{"data", "", "/data"},
		{"/data", "/data/", ""},
		{"/var/lib/postgresql/data", "/var/lib/postgresql", ""},
		{"/var/lib/postgresql", "/var/lib/postgresql/data", "/var/lib/postgresql"},
		{"/database /data", "/data", "/database"},
		{"/data /data/logs /data2", "", "/data /data2"},
		{"/ /proc/x /sys /dev/shm /tmp", "", "/tmp"},
		{"/x", "/", ""},
	} {
		declared := map[string]struct{}{}
		for _, d := range strings.Fields(c.declared) {
			declared[d] = struct{}{}
		}
		var of Container
		for _, m := range strings.Fields(c.mounts) {
			of.VolumeMounts = append(of.VolumeMounts, corev1.VolumeMount{MountPath: m})
		}
		if got := of.UnmountedVolumes(declared); !reflect.DeepEqual(got, strings.Fields(c.want)) && len(got)+len(c.want) > 0 {
			t.Errorf("declared %q, mounted %q: %v, want %q", c.declared, c.mounts, got, c.want)
		}
	}
}

func TestVolumesOfImagesHaveNamesOfTheirOwn(t *testing.T) {
	for _, c := range []struct{ container, folder, want string }{
		{"", "/data", "shop.image.data"},
		{"", "/var/lib/mysql", "shop.image.var-lib-mysql"},
		{"log", "/data", "shop.image.log.data"},
	} {
		if got := ImageVolumeName("shop", c.container, c.folder); got != c.want {
			t.Errorf("%s of %q: %s, want %s", c.folder, c.container, got, c.want)
		}
	}
	names := map[string]string{}
	for _, folder := range []string{"/a/b", "/a-b", "/a_b", "/A/b", "/a.b", "/é", "/-", "/" + strings.Repeat("long/", 30),
		"/" + strings.Repeat("long/", 31), "/" + strings.Repeat("x", 200)} {
		name := ImageVolumeName(strings.Repeat("s", 63), strings.Repeat("c", 63), folder)
		if other := names[name]; other != "" {
			t.Errorf("%s and %s are both %s", folder, other, name)
		}
		names[name] = folder
		if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
			t.Errorf("%s: %s: %v", folder, name, wrong)
		}
	}
}

func TestVolumesOfImagesAreKeptForOnePodAtATime(t *testing.T) {
	for _, c := range []struct {
		spec  WangellServiceSpec
		keeps bool
		why   string
	}{
		{WangellServiceSpec{}, true, ""},
		{WangellServiceSpec{ImageVolumes: ImageVolumesDiscard}, false, ""},
		{WangellServiceSpec{UpdateStrategy: UpdateRecreate}, true, ""},
		{WangellServiceSpec{UpdateStrategy: UpdateRolling}, false, "updateStrategy is RollingUpdate"},
		{WangellServiceSpec{MaxReplicas: 2}, false, "maxReplicas is above 1"},
		{WangellServiceSpec{Scaling: &Scaling{}}, false, "maxReplicas is above 1"},
		{WangellServiceSpec{Sleep: &Sleep{Prepared: 1}}, false, "sleep.prepared is set"},
	} {
		if got := c.spec.KeepsImageVolumes(); got != c.keeps {
			t.Errorf("%+v keeps: %v", c.spec, got)
		}
		text := c.spec.UnkeptVolumes([]string{"/a", "/b"}, false)
		if c.why != "" && !strings.Contains(text, "/a, /b is lost") || c.why != "" && !strings.Contains(text, c.why) {
			t.Errorf("%+v: %q", c.spec, text)
		}
		if c.spec.ImageVolumes != "" && text != "" {
			t.Errorf("Discard warns: %q", text)
		}
		var errs ValidationErrors
		c.spec.ImageVolumes = ImageVolumesKeep
		errs.imageVolumes(&c.spec)
		if refused := len(errs) > 0; refused != (c.why != "") {
			t.Errorf("%+v with Keep: %v", c.spec, errs)
		}
	}
}

func TestVolumesThatAreLostOnKubernetesAreThoseOfContainersThatStay(t *testing.T) {
	declared := func(image string) []string {
		return map[string][]string{"db": {"/data", "/log"}, "proxy": {"/cache", "/log"}, "setup": {"/setup"}}[image]
	}
	data := []corev1.VolumeMount{{MountPath: "/data"}}
	always := corev1.ContainerRestartPolicyAlways
	one := WangellServiceSpec{Image: "db", VolumeMounts: data, Containers: []Container{{Name: "p", Image: "proxy"}},
		InitContainers: []Container{{Name: "s", Image: "setup"}}}
	template := WangellServiceSpec{Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "s", Image: "setup"}, {Name: "p", Image: "proxy", RestartPolicy: &always}},
		Containers:     []corev1.Container{{Name: "d", Image: "db", VolumeMounts: data}, {Name: "x", Image: "none"}},
	}}}
	for name, spec := range map[string]*WangellServiceSpec{"fields": &one, "template": &template} {
		paths := spec.LostVolumes(declared)
		if !reflect.DeepEqual(paths, []string{"/cache", "/log"}) {
			t.Errorf("%s: %v", name, paths)
		}
		text := spec.UnkeptVolumes(paths, true)
		if !strings.Contains(text, "/cache, /log is lost") || !strings.Contains(text, "PersistentVolumeClaim") {
			t.Errorf("%s: %q", name, text)
		}
		spec.ImageVolumes = ImageVolumesDiscard
		if text := spec.UnkeptVolumes(paths, true); text != "" {
			t.Errorf("%s with Discard: %q", name, text)
		}
	}
}
