// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/need"
)

func TestStartAndStopLeaveNothing(t *testing.T) {
	cfg := testConfig(t)
	cfg.ReadyContainers, cfg.ReadyNetworks = -1, -1
	r := startWithProbe(t, cfg)
	before := podInventory(t, r)
	for range 3 {
		p, err := r.Start(t.Context(), runtimetest.Service("leak"), runtime.StartHooks{})
		if err != nil {
			t.Fatal(err)
		}
		runtimetest.Look(t, p)
		if during := podInventory(t, r); len(during) < len(before)+6 {
			t.Fatalf("inventory does not see the pod: %q", during)
		}
		if err := r.Stop(t.Context(), p.ID, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if after := podInventory(t, r); !slices.Equal(before, after) {
		t.Errorf("before %q\nafter %q", before, after)
	}
}

// Also what containerd, its shim and runc make only after the cancellation must not stay.
func TestCancelledStartLeavesNothing(t *testing.T) {
	r := startWithProbe(t, unready(t))
	before := podInventory(t, r)
	for after := time.Duration(0); after <= 80*time.Millisecond; after += time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		p, err := r.Start(ctx, runtimetest.Service("given-up"), runtime.StartHooks{})
		cancel()
		if err == nil {
			if err := r.Stop(t.Context(), p.ID, 0); err != nil {
				t.Fatal(err)
			}
		}
		if left := podInventory(t, r); !slices.Equal(before, left) {
			t.Fatalf("cancelled after %v: left behind: %q", after, left)
		}
	}
}

// BenchmarkStart measures the time from Start to the started process, with a ready container and network and without.
// Use -benchtime 30x.
func BenchmarkStart(b *testing.B) {
	for _, name := range []string{"prepared", "ready", "unready"} {
		b.Run(name, func(b *testing.B) {
			cfg := testConfig(b)
			if name == "unready" {
				cfg.ReadyContainers, cfg.ReadyNetworks = -1, -1
			}
			r := startWithProbe(b, cfg)
			s := runtimetest.Service("bench")
			if name == "prepared" {
				s.Spec.Sleep = &v1alpha1.Sleep{Prepared: 1}
			}
			if err := r.Prepare(b.Context(), s, nil); err != nil {
				b.Fatal(err)
			}
			steps := map[string][]float64{}
			for b.Loop() {
				b.StopTimer()
				awaitReady(b, r)
				awaitPrepared(b, r, s)
				b.StartTimer()
				begin := monotime.Now()
				last := begin
				p, err := r.Start(b.Context(), s, runtime.StartHooks{Phase: func(ph runtime.Phase, at monotime.Time) {
					steps[string(ph)] = append(steps[string(ph)], at.Sub(last).Seconds()*1e3)
					last = at
				}})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				steps["total"] = append(steps["total"], p.Started.Sub(begin).Seconds()*1e3)
				runtimetest.Look(b, p)
				at := time.Now()
				if err := r.Stop(b.Context(), p.ID, 5*time.Second); err != nil {
					b.Fatal(err)
				}
				steps["stop"] = append(steps["stop"], time.Since(at).Seconds()*1e3)
				b.StartTimer()
			}
			for step, x := range steps {
				sort.Float64s(x)
				b.ReportMetric(stat.Quantile(.5, stat.Empirical, x, nil), step+"-median-ms")
			}
			b.ReportMetric(stat.StdDev(steps["total"], nil), "total-sd-ms")
		})
	}
}

// awaitReady waits until the keeper has prepared everything.
func awaitReady(t testing.TB, r *Runtime) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		r.mu.Lock()
		done := r.ready.next() == nil && len(r.ready.making) == 0 && len(r.garbage) == 0
		r.mu.Unlock()
		if done && r.nets.Ready() {
			return
		}
	}
	t.Fatal("nothing was prepared")
}

func TestContainerdFulfilsTheRuntimeContract(t *testing.T) { fulfilsContract(t, DefaultSnapshotter) }

func TestErofsFulfilsTheRuntimeContract(t *testing.T) {
	withErofs(t)
	fulfilsContract(t, erofs.Snapshotter)
}

// withErofs puts a containerd that can unpack for the snapshotter erofs into $PATH, and what it needs for that.
func withErofs(t *testing.T) {
	t.Helper()
	program := need.ErofsContainerd(t)
	maker, _, err := debimage.MkfsErofs(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", strings.Join([]string{filepath.Dir(program), maker, os.Getenv("PATH")}, ":"))
}

func fulfilsContract(t *testing.T, snapshotter string) {
	t.Helper()
	images := 0
	runtimetest.Run(t, func(t *testing.T) runtimetest.Harness {
		cfg := testConfig(t)
		cfg.Snapshotter = snapshotter
		var last *Runtime
		t.Cleanup(func() {
			if last == nil {
				return
			}
			images += layerImages(t, cfg)
			before := inventory(t, cfg)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := last.Destroy(ctx); err != nil {
				t.Error("destroy:", err)
			}
			if err := RemoveOwn(cfg.StateDir); err != nil {
				t.Error(err)
			}
			if left := inventory(t, cfg); len(left) > 0 {
				t.Errorf("left behind: %q\nbefore Destroy: %q", left, before)
			}
		})
		return runtimetest.Harness{Open: func(t *testing.T) runtime.Runtime {
			r, err := New(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			last = r
			loadProbe(t, r)
			return r
		}}
	})
	if snapshotter == erofs.Snapshotter && images == 0 {
		t.Error("no layer became an image")
	}
}

// layerImages returns the number of layers that are images of EROFS. It fails the test if one was not made by the
// differ: the folder of the snapshot then has files as well.
func layerImages(t *testing.T, cfg Config) int {
	t.Helper()
	snapshots := filepath.Join(snapshotterRoot(cfg.StateDir, erofs.Snapshotter), "snapshots")
	layers, err := filepath.Glob(filepath.Join(snapshots, "*", "layer.erofs"))
	if err != nil {
		t.Error(err)
	}
	for _, l := range layers {
		files, err := filepath.Glob(filepath.Join(filepath.Dir(l), "fs", "*"))
		if err != nil || len(files) > 0 {
			t.Errorf("%s was unpacked file by file: %q, %v", l, files, err)
		}
	}
	return len(layers)
}

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
