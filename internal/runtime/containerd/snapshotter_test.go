// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

// layersOf returns the names of the layers of containers that a snapshotter has.
func layersOf(t *testing.T, r *Runtime, snapshotter string) []string {
	t.Helper()
	var names []string
	err := r.client.SnapshotService(snapshotter).Walk(t.Context(), func(_ context.Context, s snapshots.Info) error {
		if s.Kind == snapshots.KindActive {
			names = append(names, s.Name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestPodsUseTheChosenSnapshotter(t *testing.T) {
	cfg := unready(t)
	first, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	loadProbe(t, first) // overlayfs unpacks it
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Snapshotter = "native"
	r := start(t, cfg)
	if got := r.Versions(t.Context())["snapshotter"]; got != "native" {
		t.Errorf("versions: %q", got)
	}
	p, err := r.Start(t.Context(), runtimetest.Service("copied"), runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, p)
	if got := layersOf(t, r, "native"); len(got) != 1 || got[0] != p.ID {
		t.Errorf("layers: %v", got)
	}
	before, err := r.Layer(t.Context(), p.ID)
	if err != nil || before.Bytes >= written {
		t.Errorf("an unused layer: %+v, %v", before, err)
	}
	writeIntoLayer(t, r, p, before)
	if err := r.Stop(t.Context(), p.ID, 0); err != nil {
		t.Fatal(err)
	}
	if got := append(layersOf(t, r, "native"), layersOf(t, r, "overlayfs")...); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestServicesChooseTheirSnapshotter(t *testing.T) {
	r := startWithProbe(t, unready(t))
	s := runtimetest.Service("copied")
	s.Spec.Layer = &v1alpha1.Layer{Snapshotter: "native"}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context(), runtimetest.Service("usual"), runtime.StartHooks{}); err != nil {
		t.Fatal(err)
	}
	if got := layersOf(t, r, "native"); len(got) != 1 || got[0] != p.ID {
		t.Errorf("native: %v", got)
	}
	if got := layersOf(t, r, "overlayfs"); len(got) != 1 {
		t.Errorf("overlayfs: %v", got)
	}
	if err := r.Stop(t.Context(), p.ID, 0); err != nil {
		t.Fatal(err)
	}
	if got := layersOf(t, r, "native"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	s.Spec.Layer.Snapshotter = "nativ"
	_, err = r.Start(t.Context(), s, runtime.StartHooks{})
	if want := `spec.layer.snapshotter: containerd cannot use "nativ": choose one of native, overlayfs`; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v does not say %q", err, want)
	}
}

func TestLayersOfAFormerSnapshotterAreRemoved(t *testing.T) {
	cfg := unready(t)
	cfg.Snapshotter = "native"
	former, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{
		labelInstance: former.cfg.Instance, "containerd.io/gc.root": time.Now().UTC().Format(time.RFC3339),
	}
	native := former.client.SnapshotService("native")
	_, err = native.Prepare(t.Context(), "left", "", snapshots.WithLabels(labels))
	if err != nil {
		t.Fatal(err)
	}
	if err := former.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Snapshotter = DefaultSnapshotter
	r := start(t, cfg)
	if got := layersOf(t, r, "native"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestSnapshotterThatContainerdCannotUseIsRefused(t *testing.T) {
	cfg := unready(t)
	for name, why := range map[string]string{
		"nativ":         "does not have it",
		"zfs":           "cannot use it",
		lazySnapshotter: "for services with imagePull.mode Lazy only",
	} {
		cfg.Snapshotter = name
		r, err := New(t.Context(), cfg)
		if err == nil {
			t.Errorf("%s is accepted", name)
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		text := err.Error()
		for _, want := range []string{`snapshotter "` + name + `": containerd at `, why, "choose one of native, overlayfs"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %v does not say %q", name, err, want)
			}
		}
		if _, err := os.Stat(OwnSocket(cfg.RunDir)); err == nil {
			if _, err := Dial(t.Context(), OwnSocket(cfg.RunDir)); err == nil {
				t.Errorf("%s: containerd is left", name)
			}
		}
	}
}
