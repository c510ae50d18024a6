// SPDX-License-Identifier: Apache-2.0

package cold

import (
	"maps"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/lab/report"
)

const reportName = "cold"

const how = `A node and a client are network namespaces joined by a bridge. An instance of Wangell runs on the node
with a containerd of its own. Its only service is asleep: before every request the instance reports no replica, and
containerd no task. A cold request is a connect() by the client to the service address and an HTTP GET, timed from
before connect() to the first byte of the answer. The floor is measured on the node, alternating with the cold
requests: a separate process starts the same container with the same specification through the same runtime code and
the same containerd, and tries to connect every 0.5 ms from the moment the container is created. (Before that no
process could listen, and attempts would only slow the start down.) It is timed from before the start to the first
byte of the answer. So the floor includes everything that the start of the container costs, and on average 0.25 ms of
waiting for the next attempt, but no gate, no daemon, no wire protocol, and no link between client and pod. Before
each sample there is a random pause, so that samples do not lock onto a periodic task. The first sample of each kind
is not counted. The waterfall shows the median of each phase's end, as reported by the instance (since the first SYN)
and by the floor process (since the start).`

// newReport makes the report from samples. The caller adds time, parameters and versions.
func newReport(raw Samples, retransmits uint64) *report.Report {
	answered := func(f func(Sample) float64) []float64 {
		return report.Collect(raw.Cold, func(s Sample) (float64, bool) { return f(s), s.Error == "" })
	}
	cold := answered(func(s Sample) float64 { return s.FirstByte })
	connected := answered(func(s Sample) float64 { return s.Connected })
	var floor []float64
	for _, s := range raw.Floor {
		floor = append(floor, s.FirstByte)
	}
	low, high := report.MedianDifferenceInterval(cold, floor, 0.95)
	phases := phasesOf(raw)
	return &report.Report{
		Name: reportName, Title: "Cold requests: overhead over the floor", Raw: raw, How: how, Answer: answer,
		Summary: report.Summary{
			{Key: "median_ms", Value: report.Median(cold), Meaning: "cold request, connect() to first byte: median"},
			{Key: "mean_ms", Value: report.Mean(cold), Meaning: "cold request: mean"},
			{Key: "stddev_ms", Value: report.StdDev(cold), Meaning: "cold request: standard deviation"},
			{Key: "p99_ms", Value: report.Percentile(cold, 99), Meaning: "cold request: 99th percentile"},
			{Key: "connected_median_ms", Value: report.Median(connected),
				Meaning: "cold request, until the connection is established: median"},
			{Key: "floor_median_ms", Value: report.Median(floor), Meaning: "floor, start to first byte: median"},
			{Key: "floor_mean_ms", Value: report.Mean(floor), Meaning: "floor: mean"},
			{Key: "floor_stddev_ms", Value: report.StdDev(floor), Meaning: "floor: standard deviation"},
			{Key: "overhead_median_ms", Value: report.Median(cold) - report.Median(floor),
				Meaning: "overhead over the floor: difference of the medians"},
			{Key: "overhead_low_ms", Value: low, Meaning: "overhead: 95 % confidence interval", Interval: true},
			{Key: "overhead_high_ms", Value: high},
			{Key: "requests", Value: float64(len(raw.Cold)), Meaning: "cold requests"},
			{Key: "lost", Value: float64(len(raw.Cold) - len(cold)), Meaning: "lost requests"},
			{Key: "syn_retransmits", Value: float64(retransmits), Meaning: "SYNs retransmitted by the client"},
		},
		Tables: []report.Table{report.PhaseTable(phases)},
		Figure: figure(cold, floor, phases),
	}
}

// phasesOf returns the waterfall of the samples.
func phasesOf(raw Samples) []report.Phase {
	var wakes []map[string]report.Span
	for _, s := range raw.Cold {
		if s.Error != "" || s.Wake == nil {
			continue
		}
		spans := map[string]report.Span{}
		for _, p := range s.Wake.Phases {
			spans[string(p.Name)] = report.Span{End: report.Milliseconds(p.At), Took: report.Milliseconds(p.Took)}
		}
		wakes = append(wakes, spans)
	}
	var floors []map[string]float64
	for _, s := range raw.Floor {
		ends := maps.Clone(s.Phases)
		if ends == nil {
			ends = map[string]float64{}
		}
		ends[string(lifecycle.PhaseFirstByte)] = s.FirstByte
		floors = append(floors, ends)
	}
	var names []string
	for _, name := range lifecycle.PhaseNames() {
		names = append(names, string(name))
	}
	return report.Phases(names, wakes, floors)
}

// answer is what the report says first.
var answer = report.Answer{
	Sentences: []string{
		"A cold request takes {median_ms} (median), {overhead_median_ms} more than the floor, the start of " +
			"the same container by hand.",
		"{lost} of {requests} requests were lost, and {syn_retransmits} SYNs were sent again.",
	},
	Quoted: []string{
		"median_ms", "p99_ms", "connected_median_ms", "floor_median_ms", "overhead_median_ms", "overhead_low_ms",
		"requests", "lost", "syn_retransmits",
	},
}
