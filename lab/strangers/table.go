// SPDX-License-Identifier: Apache-2.0

package strangers

import (
	"fmt"
	"math"
	"strconv"

	"wangell.loutres.me/lab/report"
)

const reportName = "strangers"

const how = `One controller runs in a process and a network namespace of its own; its runtime makes pods at once.
All daemons run in another process and namespace: each has the wire's client, a socket and a session of its own,
and a simulated gate that answers as a gate does (a pod listens). Services are woken at an even rate, each by
another daemon. A wake's time is that from the daemon's WAKE until it has the serving pod, which takes two round
trips to the controller: pods start at once, so all of it is overhead. Parts with and without a flood alternate:
calm, flood, flood, calm. Strangers' frames enter at the controller's end of the link, one after another and
evenly, from 65,536 addresses and as many ports. Of ten datagrams, four are HELLOs that name a connected node, two
HELLOs that name another, two are of sessions that do not exist, one is a HELLO that was cut off and one has 1,200
random bytes. The HELLOs and sessions are genuine ones of other wires, with other keys. Everything shares the
machine's cores: the flood, which is not at the controller's expense on a real network, has a higher priority
than the controller.`

// times returns the wakes of all parts of a kind.
func (s *Samples) times(flood bool) (all []float64) {
	for _, p := range s.Parts {
		if p.Flood == flood {
			all = append(all, p.Wakes...)
		}
	}
	return all
}

// sum returns the sum of something of all parts of a kind.
func (s *Samples) sum(flood bool, f func(Part) float64) (sum float64) {
	for _, p := range s.Parts {
		if p.Flood == flood {
			sum += f(p)
		}
	}
	return sum
}

// newReport makes the report from samples. The caller adds time, parameters and versions.
func newReport(s Samples) *report.Report {
	calm, flooded := s.times(false), s.times(true)
	low, high := report.MedianDifferenceInterval(flooded, calm, 0.95)
	seconds := func(p Part) float64 { return p.Seconds }
	cpu := func(p Part) float64 { return p.Controller }
	failed := func(p Part) float64 { return float64(p.Failed) }
	sent := s.sum(true, func(p Part) float64 { return float64(p.Sent) })
	read := s.sum(true, func(p Part) float64 { return float64(p.Read) })
	dropped := s.sum(true, func(p Part) float64 { return float64(p.Dropped) })
	return &report.Report{
		Name: reportName, Title: "Strangers at the controller's port", Raw: s, How: how, Answer: answer,
		Summary: report.Summary{
			{Key: "daemons", Value: float64(s.Daemons), Meaning: "daemons"},
			{Key: "datagrams_per_s", Value: math.Round(sent / s.sum(true, seconds)),
				Meaning: "strangers' datagrams per second"},
			{Key: "flood_s", Value: math.Round(s.sum(true, seconds)), Meaning: "duration of all floods (s)"},
			{Key: "sessions_ended", Value: float64(s.Ended), Meaning: "sessions that ended"},
			{Key: "connected", Value: float64(s.Connected), Meaning: "daemons with a session at the end"},
			{Key: "wakes", Value: float64(len(flooded)) + s.sum(true, failed), Meaning: "wakes during floods"},
			{Key: "wakes_failed", Value: s.sum(true, failed), Meaning: "of these, failed"},
			{Key: "calm_p50_ms", Value: report.Median(calm), Meaning: "a wake without a flood, median"},
			{Key: "calm_p99_ms", Value: report.Percentile(calm, 99), Meaning: "the same, 99th percentile"},
			{Key: "flood_p50_ms", Value: report.Median(flooded), Meaning: "a wake during a flood, median"},
			{Key: "flood_p99_ms", Value: report.Percentile(flooded, 99), Meaning: "the same, 99th percentile"},
			{Key: "difference_p50_ms", Value: report.Median(flooded) - report.Median(calm),
				Meaning: "what a flood adds to the median"},
			{Key: "difference_p50_low_ms", Value: low, Meaning: "the same, 95 % interval", Interval: true},
			{Key: "difference_p50_high_ms", Value: high, Meaning: "its upper bound"},
			{Key: "difference_p99_ms", Value: report.Percentile(flooded, 99) - report.Percentile(calm, 99),
				Meaning: "what a flood adds to the 99th percentile"},
			{Key: "dropped_percent", Value: 100 * dropped / (read + dropped),
				Meaning: "datagrams that found no room in a receive buffer (%)"},
			{Key: "calm_cpu_percent", Value: 100 * s.sum(false, cpu) / s.sum(false, seconds),
				Meaning: "controller without a flood, use of one core (%)"},
			{Key: "flood_cpu_percent", Value: 100 * s.sum(true, cpu) / s.sum(true, seconds),
				Meaning: "controller during a flood, use of one core (%)"},
		},
		Tables: []report.Table{partTable(s)},
		Figure: figure(s),
	}
}

// partTable has a row for each part.
func partTable(s Samples) report.Table {
	t := report.Table{Title: "Parts", Header: []string{"", "seconds", "strangers' datagrams per second", "read per second",
		"dropped per second", "wakes", "failed", "median (ms)", "99 % (ms)", "longest (ms)", "controller: CPU (s)"}}
	for i, p := range s.Parts {
		name := "calm"
		if p.Flood {
			name = "flood"
		}
		perSecond := func(n int) string { return report.Whole(float64(n) / p.Seconds) }
		t.Rows = append(t.Rows, []string{fmt.Sprintf("%d: %s", i+1, name), report.Decimal(p.Seconds), perSecond(p.Sent),
			perSecond(p.Read), perSecond(p.Dropped), strconv.Itoa(len(p.Wakes) + p.Failed), strconv.Itoa(p.Failed),
			report.Decimal(report.Median(p.Wakes)), report.Decimal(report.Percentile(p.Wakes, 99)),
			report.Decimal(report.Percentile(p.Wakes, 100)), report.Decimal(p.Controller)})
	}
	return t
}

// answer is what the report says first.
var answer = report.Answer{
	Sentences: []string{
		"While strangers sent {datagrams_per_s} datagrams per second for {flood_s} seconds, {sessions_ended} sessions of " +
			"{daemons} daemons ended, and {wakes_failed} of {wakes} wakes failed.",
		"The median of what a wake takes to and from the controller was {flood_p50_ms}, and {calm_p50_ms} in between; the " +
			"99th percentiles were {flood_p99_ms} and {calm_p99_ms}.",
	},
	Quoted: []string{
		"datagrams_per_s", "flood_s", "sessions_ended", "wakes_failed", "calm_p50_ms", "flood_p50_ms", "difference_p50_ms",
		"difference_p50_low_ms", "difference_p99_ms", "flood_cpu_percent",
	},
}
