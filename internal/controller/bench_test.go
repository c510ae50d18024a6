// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

const many = 10_000

func manyServices() []*v1alpha1.WangellService {
	all := make([]*v1alpha1.WangellService, many)
	for i := range all {
		all[i] = newService(fmt.Sprintf("s%05d", i))
	}
	return all
}

func heapBytes() uint64 {
	goruntime.GC()
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkApply10000 measures the time until a daemon has 10,000 services, their cost in heap and goroutines, and the
// time to apply the same services again.
func BenchmarkApply10000(b *testing.B) {
	all := manyServices()
	for range b.N {
		b.StopTimer()
		w := newWorld(b, nil)
		w.untilDaemons(1)
		before, goroutines := heapBytes(), goruntime.NumGoroutine()
		b.StartTimer()
		begin := time.Now()
		w.apply(all...)
		applied := time.Since(begin)
		w.until("the daemon has the table", func() bool {
			w.d.mu.Lock()
			defer w.d.mu.Unlock()
			return len(w.d.table) == many
		})
		spread := time.Since(begin)
		b.StopTimer()
		w.until("all are prepared", func() bool { w.rt.mu.Lock(); defer w.rt.mu.Unlock(); return len(w.rt.prepared) == many })
		begin = time.Now()
		w.apply(all...)
		again := time.Since(begin)
		b.ReportMetric(applied.Seconds()*1e3, "ms/apply")
		b.ReportMetric(spread.Seconds()*1e3, "ms/until-daemon-has-all")
		b.ReportMetric(again.Seconds()*1e3, "ms/apply-unchanged")
		b.ReportMetric(float64(heapBytes()-before)/many, "heap-B/service") // the fake daemon's table included
		b.ReportMetric(float64(goruntime.NumGoroutine()-goroutines), "goroutines")
	}
}

// startClock is a runtime that notes when Start is called.
type startClock struct {
	*fakeRuntime
	at chan monotime.Time
}

func (r *startClock) Start(ctx context.Context, s *v1alpha1.WangellService, h runtime.StartHooks) (runtime.Pod, error) {
	r.at <- monotime.Now()
	return r.fakeRuntime.Start(ctx, s, h)
}

// BenchmarkWakeToStart measures the time from the arrival of a WAKE until the call of Runtime.Start, among 10,000
// sleeping services.
func BenchmarkWakeToStart(b *testing.B) {
	clock := &startClock{at: make(chan monotime.Time, 1)}
	w := newWorld(b, func(c *Config) {
		clock.fakeRuntime = c.Runtime.(*fakeRuntime)
		c.Runtime = clock
	})
	w.apply(manyServices()...)
	a := w.vip("s00077")
	var took []time.Duration
	for b.Loop() {
		begin := monotime.Now()
		w.c.loop.post(func() {
			w.c.receiver.receive(wire.Peer{}, &wire.Wake{Service: a, SYNSeen: begin, Noticed: begin, Parked: 1})
		})
		took = append(took, (<-clock.at).Sub(begin))
		b.StopTimer()
		w.until("warm", func() bool { return w.c.warmForTest("default/s00077") })
		if err := w.c.Sleep(context.Background(), "default/s00077"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "ns/median")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "ns/p99")
}

// warmForTest looks at one service only, as Status copies all.
func (c *Controller) warmForTest(k v1alpha1.Key) (warm bool) {
	c.loop.call(func() { s := c.engine.table.services[k]; warm = s.machine.State().String() == "Warm" })
	return warm
}

func BenchmarkStatus10000(b *testing.B) {
	w := newWorld(b, nil)
	w.apply(manyServices()...)
	for b.Loop() {
		if len(w.c.Status()) != many {
			b.Fatal("not all")
		}
	}
}
