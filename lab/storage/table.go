// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"wangell.loutres.me/lab/report"
)

const how = `%s Each test has an instance of Wangell of its own, in network namespaces and folders of its own, and its
services are woken through the gate by clients in another namespace. The layer is that of overlayfs. Before a
measurement the machine's dirty pages are written and its caches dropped; they are the machine's, so work beside it is
measured too. The tests of a repetition have a random order. Without a container the files of the same image are in a
folder, or in a writable snapshot of one of containerd's snapshotters, and the program runs there by chroot, without
gate, layer and limits. Tuned: %s. Intervals are Welch's t-intervals for the mean of the runs' medians, one for each
repetition: with few repetitions they are wide, and of twenty statements that are wrong one is shown by chance. JSON
has every latency.`

// newReport makes the report from samples. The caller adds time, parameters and versions.
func newReport(w workload, raw Samples) *report.Report {
	tables := []report.Table{aggregateTable(raw), verdictTable(w, raw)}
	if w.name() == (redmine{}).name() {
		tables = slices.Concat([]report.Table{besideTable(raw)}, tables, []report.Table{jmeterTable(raw)})
	}
	return &report.Report{
		Name: reportName(w.name()), Title: w.title(), Raw: raw, How: fmt.Sprintf(how, w.how(), w.tuning()),
		Answer:  answer,
		Summary: summary(w, raw),
		Tables:  append(tables, failureTable(raw)...),
		Figure:  figure(w, raw),
	}
}

func summary(w workload, raw Samples) (out report.Summary) {
	for _, c := range raw.Cases {
		runs := raw.of(c.Key)
		a := aggregateOf(together(runs, w.headline()))
		add := func(key, meaning string, v float64) {
			prefix := c.Key
			if c.Test > 0 {
				prefix = "test" + strconv.Itoa(c.Test)
			}
			out = append(out, report.Value{Key: prefix + "_" + key, Value: v, Meaning: c.Name + ": " + meaning})
		}
		what := strings.TrimSpace(w.headline() + " ")
		if what != "" {
			what += ", "
		}
		add("mean_ms", what+"mean", a.mean)
		add("median_ms", what+"median", a.median)
		add("p90_ms", what+"90 % line", a.p90)
		add("error_pct", "errors, %", a.errorPct())
		add("throughput_s", "operations per second", a.throughput)
		add("iostat_max_wkb_s", "most writing in iostat, kB/s", mostWriting(runs))
	}
	for _, p := range pairs {
		if v, ok := p.compare(w, raw); ok {
			out = append(out, v...)
		}
	}
	return out
}

// aggregateTable is the table of JMeter's aggregate report, for all tests.
func aggregateTable(raw Samples) report.Table {
	t := report.Table{Title: "Aggregate", Header: []string{"test", "operation", "samples", "mean (ms)", "median",
		"90 % line", "min", "max", "error %", "throughput (/s)", "KB/s"}}
	for _, c := range raw.Cases {
		runs := raw.of(c.Key)
		names, ops := byOperation(runs)
		for _, name := range names {
			t.Rows = append(t.Rows, aggregateOf(ops[name]).row(c.Name, name))
		}
		if len(names) > 1 {
			t.Rows = append(t.Rows, aggregateOf(together(runs, "")).row(c.Name, "all"))
		}
	}
	return t
}

// failureTable lists tests that could not be run; none if all could.
func failureTable(raw Samples) []report.Table {
	t := report.Table{Title: "Tests that could not be run", Header: []string{"test", "repetition", "error"}}
	for _, c := range raw.Cases {
		for _, r := range raw.Runs {
			if r.Case == c.Key && r.Error != "" {
				t.Rows = append(t.Rows, []string{c.Name, strconv.Itoa(r.Repetition), r.Error})
			}
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return []report.Table{t}
}

// answer is what the report says first.
var answer = report.Answer{
	Sentences: []string{
		"An operation takes {test1_median_ms} with the data in the container's layer, {test3_median_ms} on a " +
			"volume and {direct_median_ms} without a container (medians).",
		"The layer differs from no container by {layer_minus_direct_ms} (95 % interval: " +
			"{layer_minus_direct_low_ms} to {layer_minus_direct_high_ms}), and from the volume by " +
			"{layer_minus_volume_ms} ({layer_minus_volume_low_ms} to {layer_minus_volume_high_ms}).",
	},
	Quoted: []string{
		"direct_median_ms", "test1_median_ms", "test2_median_ms", "test3_median_ms", "test4_median_ms",
		"split_volume_median_ms", "test5_median_ms", "btrfs_layer_median_ms", "layer_minus_direct_low_ms",
		"layer_minus_volume_low_ms",
	},
}
