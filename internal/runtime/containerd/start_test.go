// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"slices"
	"sort"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
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
