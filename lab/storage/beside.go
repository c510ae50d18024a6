// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"slices"
	"strconv"

	"wangell.loutres.me/lab/report"
)

// theirs are the figures of the report that the tests repeat: 2,000 operations per minute, Docker with the
// copy-on-write store of its time.
var theirs = []struct{ key, found string }{
	{"layer", "mean 8.5 s, 90 % line 26.7 s, 9.3 % errors"},
	{"preallocated", "median 2.5 s, 5.7 % errors"},
	{"volume", "79 ms, no errors"},
	{"split_layer", "slower than test 1, 20.9 % errors, disk busy 98 %"},
	{"tuned", "201 ms, no errors"},
}

// besideTable shows the figures beside those of the report.
func besideTable(raw Samples) report.Table {
	t := report.Table{Title: "Beside the report", Header: []string{"test", "report, 2,000 operations a minute",
		"here: mean (ms)", "median", "90 % line", "errors %", "disk busy, most (%)"}}
	for _, theirs := range theirs {
		i := slices.IndexFunc(raw.Cases, func(c Case) bool { return c.Key == theirs.key })
		if i < 0 {
			continue
		}
		runs := raw.of(theirs.key)
		a := aggregateOf(together(runs, ""))
		t.Rows = append(t.Rows, []string{raw.Cases[i].Name, theirs.found, report.Decimal(a.mean), report.Decimal(a.median),
			report.Decimal(a.p90), report.Decimal(a.errorPct()), decimalOrNone(maxOf(runs, "%util"))})
	}
	return t
}

// jmeterTable has the lines of JMeter's Aggregate Report of the first repetition of each test.
func jmeterTable(raw Samples) report.Table {
	t := report.Table{Title: "JMeter's Aggregate Report, first repetition of each test", Header: []string{"test",
		"operation", "samples", "mean (ms)", "median", "90 % line", "min", "max", "error %", "throughput (/s)", "KB/s"}}
	for _, c := range raw.Cases {
		runs := raw.of(c.Key)
		if len(runs) == 0 {
			continue
		}
		lines := slices.Clone(runs[0].JMeter)
		slices.SortStableFunc(lines, func(a, b JMeterLine) int { // the total is the last line
			return btoi(a.Label == totalLabel) - btoi(b.Label == totalLabel)
		})
		for _, l := range lines {
			t.Rows = append(t.Rows, []string{c.Name, l.Label, strconv.Itoa(l.Samples), report.Whole(l.Mean),
				report.Whole(l.Median), report.Whole(l.P90), report.Whole(l.Min), report.Whole(l.Max),
				report.Decimal(l.ErrorPct), report.Decimal(l.Throughput), report.Decimal(l.KBPerS)})
		}
	}
	return t
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
