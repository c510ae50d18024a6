// SPDX-License-Identifier: Apache-2.0

package prewake

import (
	"fmt"

	"wangell.loutres.me/lab/report"
)

const reportName = "prewake"

const how = `A simulation of decisions, not a measurement of starts: uses of services are generated, and each
service is replayed with every policy, by the code that the controller runs (internal/decide/forecast). A use is cold if
no pod is ready when it comes; the first one of a service always is. A use takes no time, as in the paper, so that
all memory counted here is that of pods that wait. A pod is kept for one minute in any case, because it takes that
long until a service with spec.sleep.predict counts as idle. The services have the published statistics of
applications of Azure Functions (Shahrad et al., "Serverless in the Wild", USENIX ATC 2020): 45 % are used at most
once an hour and 81 % at most once a minute, 20 % at regular times, 10 % nearly so, 40 % in bursts (coefficient of
variation above 1), the others in between; at night half as much as by day; memory by the paper's Burr
distribution. Within these ranges, values are spread evenly on a logarithmic scale, from once in a week to twice a
minute, and times between uses are drawn from gamma distributions; that is ours. Real services have more pattern
than these: they depend on each other, on weekdays and on people. "Fixed" keeps a pod for the time after each use;
"predict" is the hybrid histogram policy, with the same time as idleTimeout for services of which nothing can be
said. The third quartile is that of the share of cold uses of each service, as in figure 15 of the paper. Memory
is relative to fixed 10 minutes.`

// newReport makes the report from samples. The caller adds time, parameters and versions.
func newReport(s Samples) *report.Report {
	list := outcomes(s)
	summary := report.Summary{
		{Key: "services", Value: float64(len(s.Services)), Meaning: "services"},
		{Key: "uses", Value: float64(list[0].uses), Meaning: "uses of all services"},
	}
	rows := make([][]string, len(list))
	for i, o := range list {
		key := "fixed"
		if o.Predict {
			key = "predict"
		}
		key = fmt.Sprintf("%s_%d", key, o.Minutes)
		summary = append(summary,
			report.Value{Key: key + "_q3_cold_percent", Value: o.quartile,
				Meaning: o.name + ": cold uses, third quartile of services (%)"},
			report.Value{Key: key + "_cold", Value: float64(o.cold), Meaning: o.name + ": cold wakes of all services"},
			report.Value{Key: key + "_memory_percent", Value: o.memory,
				Meaning: o.name + ": idle memory, of fixed 10 min (%)"})
		rows[i] = []string{o.name, fmt.Sprint(o.cold), fmt.Sprintf("%.1f", o.quartile), fmt.Sprintf("%.0f", o.Idle/3600/1024),
			fmt.Sprintf("%.0f", o.memory)}
	}
	return &report.Report{
		Name: reportName, Title: "Cold wakes avoided by a forecast", Raw: s, How: how, Answer: answer, Summary: summary,
		Tables: []report.Table{
			{Title: "Policies", Header: []string{"policy", "cold wakes", "third quartile of services (% cold)",
				"idle memory (GB·h)", "of fixed 10 min (%)"}, Rows: rows},
			basesTable(s), workloadTable(s),
		},
		Figure: figure(s),
	}
}

// basesTable tells what the forecasts were made from.
func basesTable(s Samples) report.Table {
	t := report.Table{Title: "What forecasts were made from, of all uses (%)",
		Header: []string{"policy", "histogram", "time series", "nothing: idleTimeout"}}
	for _, o := range outcomes(s) {
		if !o.Predict {
			continue
		}
		share := func(basis ...string) string {
			n := 0
			for _, b := range basis {
				n += o.Bases[b]
			}
			return fmt.Sprintf("%.1f", 100*float64(n)/float64(o.uses))
		}
		t.Rows = append(t.Rows, []string{o.name, share("histogram"), share("series"), share("unknown", "")})
	}
	return t
}

// workloadTable compares the generated services with the published statistics.
func workloadTable(s Samples) report.Table {
	var hour, minute, same, wild, few, n float64
	memory := make([]float64, len(s.Services))
	for i, v := range s.Services {
		memory[i] = v.Memory
		perDay := float64(v.Uses) / float64(s.Days)
		hour += is(perDay <= 24)
		minute += is(perDay <= 24*60)
		if v.Variation < 0 {
			few++
			continue
		}
		n++
		same += is(v.Variation < 0.001)
		wild += is(v.Variation > 1)
	}
	all := float64(len(s.Services))
	percent := func(part, whole float64) string { return fmt.Sprintf("%.0f", 100*part/whole) }
	return report.Table{Title: "The generated services", Header: []string{"", "generated", "published"}, Rows: [][]string{
		{"used at most once an hour on average (%)", percent(hour, all), "45"},
		{"used at most once a minute on average (%)", percent(minute, all), "81"},
		{"used at regular times: coefficient of variation 0 (%)", percent(same, n), "20"},
		{"used in bursts: coefficient of variation above 1 (%)", percent(wild, n), "40"},
		{"with too few uses to tell (%)", percent(few, all), "–"},
		{"memory, median (MB)", fmt.Sprintf("%.0f", report.Median(memory)), "140, by the fit"},
		{"memory, 90th percentile (MB)", fmt.Sprintf("%.0f", report.Percentile(memory, 90)), "262, by the fit"},
	}}
}

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// answer is what the report says first.
var answer = report.Answer{
	Sentences: []string{
		"Of {uses} simulated uses of {services} services, {fixed_10_cold} are cold wakes with an idle timeout " +
			"of 10 minutes, and {predict_10_cold} with a forecast as well.",
		"The forecast takes {predict_10_memory_percent} % of the idle memory of the timeout alone; a timeout " +
			"of 60 minutes takes {fixed_60_memory_percent} % and leaves {fixed_60_cold} cold wakes.",
	},
	Quoted: []string{
		"services", "uses", "fixed_10_cold", "fixed_10_q3_cold_percent", "fixed_60_cold", "fixed_60_memory_percent",
		"predict_10_cold", "predict_10_q3_cold_percent", "predict_10_memory_percent",
	},
}
