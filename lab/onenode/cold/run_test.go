// SPDX-License-Identifier: Apache-2.0

package cold

import (
	"context"
	"log/slog"
	"math"
	"os"
	"testing"
	"time"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/onenode"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/need"
)

// TestMain is also the floor process of the test below.
func TestMain(m *testing.M) {
	if os.Getenv("LAB_TEST_FLOOR") != "" {
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		if err := onenode.RunFloor(context.Background(), os.Stdin, os.Stdout, log); err != nil {
			slog.Error("floor", "err", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestColdRunsAndLeavesNothing runs the whole experiment with few requests and a wangell built from this tree. It
// checks that the experiment works and cleans up, not how long things take.
func TestColdRunsAndLeavesNothing(t *testing.T) {
	need.Root(t)
	need.Program(t, "containerd", "containerd")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	wangell, err := e2e.Wangell(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("LAB_TEST_FLOOR", "1")
	progress := 0
	out := lab.Output{Progress: func(done, total int) { progress = done }, Log: t.Logf}
	params := Params{Wangell: wangell, Requests: 3, floor: []string{os.Args[0]}}
	reports, err := params.Run(ctx, out)
	if err != nil {
		t.Fatal(err)
	}
	r := reports[0]
	dir := t.TempDir()
	if keep := os.Getenv("LAB_TEST_OUT"); keep != "" {
		dir = keep
	}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]float64{"requests": 3, "lost": 0} {
		if got := r.Summary.Get(key); got != want {
			t.Errorf("%s is %v, want %v: %+v", key, got, want, r.Raw)
		}
	}
	for _, key := range []string{"median_ms", "mean_ms", "stddev_ms", "p99_ms", "floor_median_ms", "overhead_median_ms",
		"syn_retransmits"} {
		if got := r.Summary.Get(key); math.IsNaN(got) || got < 0 && key != "overhead_median_ms" {
			t.Errorf("%s is %v", key, got)
		}
	}
	raw := r.Raw.(Samples)
	if len(raw.Floor) != 3 || len(raw.Cold) != 3 || progress != 3 {
		t.Fatalf("%d floor and %d cold samples, progress %d, want 3", len(raw.Floor), len(raw.Cold), progress)
	}
	for i := range 3 {
		if f := raw.Floor[i]; f.Attempts < 1 || f.FirstByte < f.Connected || f.Phases["started"] <= 0 {
			t.Errorf("floor sample %d: %+v", i, f)
		}
		if c := raw.Cold[i]; c.Wake == nil || c.Connected <= 0 || c.FirstByte < c.Connected || c.Done < c.FirstByte {
			t.Errorf("cold sample %d: %+v", i, c)
		} else if i > 0 && c.Wake.Number != raw.Cold[i-1].Wake.Number+1 {
			t.Errorf("cold samples %d and %d are of wakes %d and %d", i-1, i, raw.Cold[i-1].Wake.Number, c.Wake.Number)
		}
	}
}
