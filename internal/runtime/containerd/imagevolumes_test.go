// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/machine/volume"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

// volumesTag is the probe with volumes: /work has a file of the image, /none is not in the image.
const volumesTag = "wangell.local/probe-volumes:v1"

// startWithVolumes opens a Runtime that has the image volumesTag.
func startWithVolumes(t *testing.T, cfg Config) *Runtime {
	t.Helper()
	r := startWithProbe(t, cfg)
	img, err := runtimetest.Probe()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.Config.Volumes = map[string]struct{}{"/work": {}, "/none/": {}, "/none/below": {}, "/mounted/data": {}}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	if err := image.ImportImage(t.Context(), r.Client(), volumesTag, img); err != nil {
		t.Fatal(err)
	}
	return r
}

func withVolumes(name string) *v1alpha1.WangellService {
	s := runtimetest.Service(name)
	s.Spec.Image = volumesTag
	s.Spec.Volumes = v1alpha1.VolumesOf(corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	s.Spec.VolumeMounts = []corev1.VolumeMount{{Name: "own", MountPath: "/mounted"}}
	return s
}

func read(t *testing.T, p runtime.Pod, file string) string {
	t.Helper()
	_, text := runtimetest.Ask(t, p, "/read", url.Values{"f": {file}})
	return text
}

func write(t *testing.T, p runtime.Pod, file, text string) {
	t.Helper()
	if code, got := runtimetest.Ask(t, p, "/write", url.Values{"f": {file}, "t": {text}}); code != http.StatusOK {
		t.Fatalf("write %s: %d %s", file, code, got)
	}
}

func TestVolumesOfAnImageOutliveItsPods(t *testing.T) {
	r := startWithVolumes(t, testConfig(t))
	s := withVolumes("kept")
	start := func(s *v1alpha1.WangellService) runtime.Pod {
		t.Helper()
		if err := r.Prepare(t.Context(), s, nil); err != nil {
			t.Fatal(err)
		}
		p, err := r.Start(t.Context(), s, runtime.StartHooks{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	stop := func(p runtime.Pod) {
		t.Helper()
		if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	p := start(s)
	v, err := r.ImageVolumes(t.Context(), s)
	if err != nil || !slices.Equal(v.Kept, []string{"/none", "/work"}) || v.Lost != nil {
		t.Errorf("volumes %+v, %v", v, err)
	}
	if got := read(t, p, "/work/file"); got != "in the image\n" {
		t.Errorf("the image's file at the first start: %q", got)
	}
	write(t, p, "/work/file", "changed")
	write(t, p, "/none/new", "kept")
	write(t, p, "/mounted/new", "of the manifest")
	stop(p)
	list, err := r.volumes.List()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range list {
		names = append(names, l.ID().String())
		if !l.OfImage("kept") || l.Service != "default/kept" || len(l.Pods) != 0 {
			t.Errorf("volume %+v", l)
		}
	}
	if !slices.Equal(names, []string{"default/kept.image.none", "default/kept.image.work"}) {
		t.Errorf("volumes %v", names)
	}
	p = start(s)
	if a, b := read(t, p, "/work/file"), read(t, p, "/none/new"); a != "changed" || b != "kept" {
		t.Errorf("after the second start: %q, %q", a, b)
	}
	if code, _ := runtimetest.Ask(t, p, "/read", url.Values{"f": {"/mounted/new"}}); code == http.StatusOK {
		t.Error("an emptyDir outlives its pod")
	}

	// With Discard, each pod has the image's own folder; the volumes stay.
	stop(p)
	s.Spec.ImageVolumes = v1alpha1.ImageVolumesDiscard
	p = start(s)
	if got := read(t, p, "/work/file"); got != "in the image\n" {
		t.Errorf("with Discard: %q", got)
	}
	stop(p)
	s.Spec.ImageVolumes = ""
	p = start(s)
	if got := read(t, p, "/work/file"); got != "changed" {
		t.Errorf("kept again: %q", got)
	}
	stop(p)

	// Where several pods may run, none of them keeps anything.
	s.Spec.MaxReplicas = 2
	p = start(s)
	if got := read(t, p, "/work/file"); got != "in the image\n" {
		t.Errorf("with two pods: %q", got)
	}
	v, err = r.ImageVolumes(t.Context(), s)
	if err != nil || v.Kept != nil || len(v.Lost) != 2 {
		t.Errorf("volumes of a service with two pods: %+v, %v", v, err)
	}
	stop(p)
}

func TestVolumesOfAnImageHaveOneWriter(t *testing.T) {
	r := startWithVolumes(t, unready(t))
	s := withVolumes("one")
	first, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Spec.Strategy() != v1alpha1.UpdateRolling {
		t.Fatalf("strategy %s", s.Spec.Strategy())
	}
	// The next process of Wangell, which adopts the pod, knows that it holds them.
	record, err := r.client.ContainerService().Get(t.Context(), first.ID)
	if err != nil || record.Labels[labelKeeps] == "" {
		t.Errorf("labels %v, %v", record.Labels, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() {
		_, err := r.Start(ctx, s, runtime.StartHooks{Network: func(runtime.Pod) { t.Error("a second pod begins") }})
		second <- err
	}()
	select {
	case err := <-second:
		t.Fatalf("a second pod: %v", err)
	case <-time.After(100 * time.Millisecond): // it waits; were it not to, the hook would say so
	}
	cancel()
	if err := <-second; err == nil {
		t.Error("a second pod has started")
	}
	if err := r.Stop(t.Context(), first.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	read(t, p, "/work/file")
}

// Each container has the volumes of its own image, with its owners and modes.
func TestVolumesOfContainersBesideTheMainOne(t *testing.T) {
	r := startWithVolumes(t, unready(t))
	s := runtimetest.Service("beside")
	s.Spec.Containers = []v1alpha1.Container{{Name: "other", Image: volumesTag, Args: []string{"run", "hang"}}}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	id := volume.ID{Namespace: "default", Name: "beside.image.other.work"}
	file := filepath.Join(r.volumes.Path(id), "file")
	if text, err := os.ReadFile(file); err != nil || string(text) != "in the image\n" {
		t.Errorf("%s: %q, %v", file, text, err)
	}
	if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
		t.Fatal(err)
	}
}

func TestFolderOfAnImageIsCopiedAsItIs(t *testing.T) {
	root, to := t.TempDir(), filepath.Join(t.TempDir(), "data")
	from := filepath.Join(root, "var", "lib", "x")
	for _, err := range []error{
		os.MkdirAll(from, 0o755), os.Chmod(from, 0o2770), os.Chown(from, 70, 71), os.Chmod(from, fs.ModeSetgid|0o770),
		os.WriteFile(filepath.Join(from, "f"), []byte("text"), 0o640), os.Symlink("/etc/passwd", filepath.Join(from, "l")),
		os.Symlink("/var/lib", filepath.Join(root, "data")), os.WriteFile(filepath.Join(root, "file"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := copyFolder(to, root, "/data/x", 5, 6); err != nil { // by a link, which is one of the image
		t.Fatal(err)
	}
	info, err := os.Stat(to)
	if err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o770 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if link, err := os.Readlink(filepath.Join(to, "l")); err != nil || link != "/etc/passwd" {
		t.Errorf("link %q, %v", link, err)
	}
	if text, err := os.ReadFile(filepath.Join(to, "f")); err != nil || string(text) != "text" {
		t.Errorf("file %q, %v", text, err)
	}
	if err := copyFolder(filepath.Join(t.TempDir(), "data"), root, "/file", 0, 0); err == nil {
		t.Error("a file is copied as a folder")
	}
}
