// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

const mib = 1 << 20

func TestJudgementNamesTheFolderThatIsWritten(t *testing.T) {
	for name, c := range map[string]struct {
		layer   runtime.Layer
		lasting int64
		folder  string
	}{
		"a database": {runtime.Layer{Bytes: 100 * mib, Folders: map[string]int64{
			"/var": 99 * mib, "/var/lib": 98 * mib, "/var/lib/mysql": 97 * mib, "/var/log": mib, "/etc": mib,
		}}, 100 * mib, "/var/lib/mysql"},
		"scattered": {runtime.Layer{Bytes: 100 * mib, Folders: map[string]int64{
			"/srv": 99 * mib, "/srv/a": 50 * mib, "/srv/b": 49 * mib,
		}}, 100 * mib, "/srv"},
		"scratch": {runtime.Layer{Bytes: 100 * mib, Folders: map[string]int64{
			"/tmp": 80 * mib, "/tmp/x": 80 * mib, "/var": 20 * mib, "/var/cache": 20 * mib,
		}}, 0, ""},
		"unknown": {runtime.Layer{Bytes: 5 * mib}, 5 * mib, ""},
	} {
		if lasting, folder := judge(c.layer); lasting != c.lasting || folder != c.folder {
			t.Errorf("%s: %d in %q", name, lasting, folder)
		}
	}
}

func TestFullLayerNamesFolderAndLimit(t *testing.T) {
	m := runtime.Layer{Bytes: 80 * mib, Folders: map[string]int64{"/data": 79 * mib}}
	for limit, want := range map[int64]string{
		0: "", 80 * mib: "",
		64 * mib: "its layer is full: it has written 80.0 MiB, mostly /data, and spec.layer.sizeLimit is 64.0 MiB: " +
			"raise it, or mount a volume at /data",
	} {
		if got := layerFull(m, limit); got != want {
			t.Errorf("%d: %q, want %q", limit, got, want)
		}
	}
}

func TestFullEmptyDirIsNamed(t *testing.T) {
	spec := v1alpha1.WangellServiceSpec{Volumes: v1alpha1.VolumesOf(
		corev1.Volume{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			SizeLimit: resource.NewQuantity(64*mib, resource.BinarySI)}}},
		corev1.Volume{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory, SizeLimit: resource.NewQuantity(mib, resource.BinarySI)}}},
		corev1.Volume{Name: "endless", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	)}
	for held, want := range map[int64]string{
		64 * mib: "",
		65 * mib: "its volume disk is full: it holds 65.0 MiB, and emptyDir.sizeLimit is 64.0 MiB: raise it, or remove " +
			"files that are not needed any more",
	} {
		if got := emptyDirFull(runtime.Layer{EmptyDirs: map[string]int64{"disk": held}}, spec.EmptyDirLimits()); got != want {
			t.Errorf("%d: %q, want %q", held, got, want)
		}
	}
}

func TestAPodWithAFullLayerIsEndedWithAReason(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) {
		s.Layer = &v1alpha1.Layer{SizeLimit: resource.NewQuantity(64*mib, resource.BinarySI)}
	}))
	events := w.c.Subscribe(t.Context())
	w.warm("a")
	pod := w.status("a").Pods[0].ID
	for _, written := range []int64{64 * mib, 65 * mib, 66 * mib} { // the last is measured while the pod ends
		w.c.loop.call(func() { w.c.layers.note(pod, runtime.Layer{Bytes: written}) })
		if written == 64*mib {
			if st := w.status("a"); len(st.Pods) != 1 || st.Pods[0].ID != pod {
				t.Fatalf("at the limit: %+v", st)
			}
		}
	}
	w.until("the pod is ended", func() bool {
		running, _, _ := w.rt.state()
		return len(running) == 0
	})
	for e := range events {
		if e.Kind == status.EventReport && strings.Contains(e.Text, "its layer is full: it has written 65.0 MiB") {
			break
		}
	}
}

func TestLayerIsWarnedOfOnceItIsLargeOrFast(t *testing.T) {
	var l layer
	at := monotime.Time(1e9)
	for i, step := range []struct {
		seconds int64
		bytes   int64
		changed bool
		want    string
	}{
		{0, 2 * mib, false, ""},                             // logs and process IDs
		{10, 3 * mib, false, ""},                            // slow
		{10, 14 * mib, true, "1.1 MiB/s (14.0 MiB so far)"}, // fast
		{10, 20 * mib, false, "(14.0 MiB so far)"},          // told
		{100, 28 * mib, true, "has written 28.0 MiB"},       // twice as much
		{10, 1 * mib, false, "has written 28.0 MiB"},        // it stays, although files were removed
	} {
		at += monotime.Time(step.seconds * 1e9)
		m := runtime.Layer{Bytes: step.bytes, Folders: map[string]int64{"/data": step.bytes}}
		if l.note(m, at) != step.changed {
			t.Errorf("step %d: changed: %t", i, !step.changed)
		}
		if step.want == "" && l.warning != "" || !strings.Contains(l.warning, step.want) {
			t.Errorf("step %d: %q, want %q", i, l.warning, step.want)
		}
	}
	for _, want := range []string{"mostly /data", "persistent: {}", "mountPath: /data}"} {
		if !strings.Contains(l.warning, want) {
			t.Errorf("%q lacks %q", l.warning, want)
		}
	}
}
