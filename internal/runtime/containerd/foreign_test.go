// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

// Two instances share a containerd that belongs to neither. Each sees and removes only its own pods, and containerd and
// its images stay.
func TestInstancesShareAContainerdOfTheMachine(t *testing.T) {
	base := testConfig(t)
	own, err := StartOwn(t.Context(), OwnConfig{StateDir: base.StateDir, RunDir: base.RunDir, Log: base.Log})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	}()
	open := func(name string) (*Runtime, Config) {
		cfg := base
		cfg.Containerd, cfg.RunDir, cfg.StateDir = own.Address(), filepath.Join(base.RunDir,
			name), filepath.Join(base.StateDir, name)
		r, err := New(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return r, cfg
	}
	a, _ := open("a")
	loadProbe(t, a)
	b, _ := open("b")
	s := runtimetest.Service("shared")
	pa, err := a.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	pb, err := b.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, pa)
	if err := b.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pods, err := a.List(t.Context()); err != nil || len(pods) != 1 {
		t.Errorf("a has pods %+v, %v", pods, err)
	}
	runtimetest.Look(t, pa)
	if left := podInventory(t, a); strings.Contains(strings.Join(left, " "), pb.ID) {
		t.Errorf("left of b: %q", left)
	}
	if v := a.Versions(t.Context()); v["containerd"] == "" || v["runc"] == "" {
		t.Errorf("versions %v", v)
	} else {
		t.Log(v)
	}
	images, err := a.Images(t.Context())
	if err != nil || len(images) != 1 {
		t.Errorf("images %+v, %v", images, err)
	}
	if err := a.Stop(t.Context(), pa.ID, time.Second); err != nil {
		t.Error(err)
	}
	if err := a.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), own.Address()); err != nil {
		t.Errorf("containerd is gone: %v", err)
	}
}
