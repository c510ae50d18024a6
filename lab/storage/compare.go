// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"math"

	"wangell.loutres.me/lab/report"
)

// pair is two tests whose difference is of interest: the one expected to be slower, and the other.
type pair struct{ slower, faster, question string }

var pairs = []pair{
	{"layer", "direct", "a container's layer costs time against no container"},
	{"layer", "volume", "a volume is faster than the layer"},
	{"sparse", "preallocated", "a preallocated file is faster than a sparse one"},
	{"split_layer", "layer", "two containers in the layer are slower than one"},
	{"split_layer", "split_volume", "volumes are faster than the layers of two containers"},
	{"split_volume", "tuned", "tuning helps"},
	{"btrfs_layer", "layer", "a layer on Btrfs is slower than one on the machine's file system"},
	{"cpu", "volume", "the limit of CPU costs time"},
	{"memory", "volume", "the limit of memory costs time"},
}

// medians returns the median of each run of a test.
func medians(w workload, raw Samples, key string) (out []float64) {
	for _, r := range raw.of(key) {
		if l := r.latencies(w.headline()); len(l) > 0 {
			out = append(out, report.Median(l))
		}
	}
	return out
}

// compare returns the difference with its interval; false if one of the tests was not run.
func (p pair) compare(w workload, raw Samples) (report.Summary, bool) {
	a, b := medians(w, raw, p.slower), medians(w, raw, p.faster)
	if len(a) == 0 || len(b) == 0 {
		return nil, false
	}
	low, high := report.MeanDifferenceInterval(a, b, 0.95)
	key := p.slower + "_minus_" + p.faster
	return report.Summary{
		{Key: key + "_ms", Value: report.Mean(a) - report.Mean(b), Meaning: p.slower + " minus " + p.faster + ": medians"},
		{Key: key + "_low_ms", Value: low, Meaning: p.slower + " minus " + p.faster + ": 95 % interval", Interval: true},
		{Key: key + "_high_ms", Value: high},
	}, true
}

// verdict describes what the interval of a difference shows.
func verdict(low, high float64) string {
	switch {
	case math.IsNaN(low):
		return "one repetition: no interval"
	case low > 0:
		return "yes"
	case high < 0:
		return "no, the opposite"
	}
	return "not shown"
}

// verdictTable shows which of the report's findings these samples confirm.
func verdictTable(w workload, raw Samples) report.Table {
	t := report.Table{Title: "What the intervals show", Header: []string{"statement", "difference of medians (ms)",
		"95 % interval", "shown?"}}
	for _, p := range pairs {
		if v, ok := p.compare(w, raw); ok {
			t.Rows = append(t.Rows, []string{p.question, report.Decimal(v[0].Value),
				decimalOrNone(v[1].Value) + " to " + decimalOrNone(v[2].Value), verdict(v[1].Value, v[2].Value)})
		}
	}
	return t
}
