// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"math"
	"strings"
	"testing"
)

// lazyRunsOf returns three rounds without the sweep, in which each pull takes a second more than in the one before.
func lazyRunsOf() lazySamples {
	raw := lazySamples{Packed: 100, First: 25, Files: 3}
	for round := range 3 {
		for _, p := range lazyPrograms {
			for i, kind := range lazyKinds {
				raw.Runs = append(raw.Runs, LazyRun{Round: round + 1, Program: p.name, Kind: kind,
					Pull: 20/float64(1+9*i) + float64(round), Run: 1})
			}
		}
	}
	return raw
}

func TestLazySummaryFollowsFromTheSamples(t *testing.T) {
	raw := lazyRunsOf()
	raw.Runs = append(raw.Runs, LazyRun{Program: "all", Kind: Lazy, Pull: 1000, Workers: 2, Piece: 1 << 20})
	r := newLazyReport(raw)
	for key, want := range map[string]float64{
		"lazy_sh_pull_s_stock": 21, "lazy_sh_run_s_stock": 1, "lazy_all_pull_s_lazy": 3, "lazy_train_run_s_optimised": 1,
		"lazy_print_speedup_lazy": 5.5, "lazy_first_bytes_ratio": 0.25,
	} {
		if got := r.Summary.Get(key); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if text := string(r.Markdown()); !strings.Contains(text, "1000.00") || strings.Count(text, "1000") != 2 {
		t.Errorf("a pull of the sweep is in its own table alone:\n%s", text)
	}
	if err := r.Write(t.TempDir()); err != nil {
		t.Error(err)
	}
}

func TestLazyReportSaysWhatWasNotMeasured(t *testing.T) {
	raw := lazyRunsOf()
	raw.Runs = raw.Runs[:1]
	if text := string(newLazyReport(raw).Markdown()); !strings.Contains(text, "not measured") || strings.Contains(text,
		"NaN") {
		t.Errorf("the report of one run:\n%s", text)
	}
}
