// SPDX-License-Identifier: Apache-2.0

package view

import (
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
)

func TestStatsComparesTwoMeasurements(t *testing.T) {
	at := time.Unix(1000, 0)
	of := func(pod string, cpu float64, periods, throttled uint64, at time.Time) status.PodUsage {
		return status.PodUsage{Service: "default/web", Pod: pod, Container: "web", CPUSeconds: cpu, MemoryBytes: 3 << 20,
			MemoryLimitBytes: 64 << 20, Periods: periods, Throttled: throttled, ThrottledSeconds: 2.5, At: at}
	}
	before := []status.PodUsage{of("a", 10, 100, 10, at), of("gone", 1, 0, 0, at)}
	free := of("free", 5, 0, 0, at.Add(2*time.Second))
	free.MemoryLimitBytes = 0
	before = append(before, of("free", 4.5, 0, 0, at))
	uses := PodUses(before, []status.PodUsage{
		of("a", 11, 120, 15, at.Add(2*time.Second)), of("new", 1, 5, 5, at.Add(2*time.Second)), free,
	})
	if len(uses) != 2 || uses[0].Cores != 0.5 || uses[0].ThrottledPercent != 25 || uses[1].Cores != 0.25 ||
		uses[1].ThrottledPercent != 0 {
		t.Fatalf("%+v", uses)
	}
	var b strings.Builder
	if err := Stats(&b, uses); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"SERVICE       POD    CONTAINER   RESTARTS   CPU      MEMORY   LIMIT     THROTTLED   THROTTLED TOTAL     CPU TIME\n" +
		"default/web   a      web         0          50.0 %   3.0 Mi   64.0 Mi   25 %        15 of 120 (2.5 s)   11.0 s\n" +
		"default/web   free   web         0          25.0 %   3.0 Mi   -         -           -                   5.0 s\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	// A pod whose cgroup was made anew counts from zero.
	again := PodUses([]status.PodUsage{of("a", 10, 100, 10, at)},
		[]status.PodUsage{of("a", 1, 5, 0, at.Add(time.Second))})
	if len(again) != 1 || again[0].Cores != 0 || again[0].ThrottledPercent != 0 {
		t.Errorf("%+v", again)
	}
}
