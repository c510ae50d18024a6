// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"strconv"

	"wangell.loutres.me/lab/report"
)

const reportName = "capacity"

const how = `An instance of Wangell with a containerd of its own runs in a network namespace. Its services use one
image and are asleep. The start is timed from the start of the program until the instance reports that it can wake
every service: it has read the manifest, assigned addresses, loaded and attached the gate, and the gate has the table
of services. After the instance has settled (less than 2 % of a core over a second), no request is made for the idle
time. Memory is VmRSS and RssAnon at the end of that time; processor use is what the kernel counted for the process,
in steps of 10 ms. Then one client on another host makes a cold request to the last service. The gate's maps are
kernel memory and not included in these numbers; they are bounded by their limits, see docs/operations/sizes.md.`

// newReport makes the report from samples; the last one has the most services. The caller adds time, parameters
// and versions.
func newReport(samples []Sample) *report.Report {
	last := samples[len(samples)-1]
	return &report.Report{
		Name: reportName, Title: "Sleeping services: start, memory, processor use", Raw: samples, How: how, Answer: answer,
		Summary: report.Summary{
			{Key: "services", Value: float64(last.Services), Meaning: "sleeping services"},
			{Key: "start_s", Value: last.Start, Meaning: "wangell up: seconds until every service can be woken"},
			{Key: "daemon_rss_mib", Value: last.Daemon.Resident, Meaning: "daemon: resident memory (MiB)"},
			{Key: "daemon_cpu_percent", Value: last.Daemon.CPU, Meaning: "daemon, idle: use of one core (%)"},
			{Key: "controller_rss_mib", Value: last.Controller.Resident, Meaning: "controller: resident memory (MiB)"},
			{Key: "controller_cpu_percent", Value: last.Controller.CPU, Meaning: "controller, idle: use of one core (%)"},
			{Key: "cold_ms", Value: last.Cold, Meaning: "one cold request"},
		},
		Tables: []report.Table{table(samples)},
		Figure: figure(samples),
	}
}

func table(samples []Sample) report.Table {
	t := report.Table{Title: "By number of services", Header: []string{"services", "start (s)", "daemon (MiB)",
		"anonymous (MiB)", "CPU (%)", "controller (MiB)", "anonymous (MiB)", "CPU (%)", "cold request (ms)"}}
	for _, s := range samples {
		row := []string{strconv.Itoa(s.Services)}
		for _, v := range []float64{s.Start, s.Daemon.Resident, s.Daemon.Anonymous, s.Daemon.CPU, s.Controller.Resident,
			s.Controller.Anonymous, s.Controller.CPU, s.Cold} {
			row = append(row, report.Decimal(v))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// answer is what the report says first.
var answer = report.Answer{
	Sentences: []string{
		"With {services} sleeping services, every one of them can be woken {start_s} s after `wangell up` " +
			"begins, and a cold request takes {cold_ms}.",
		"The daemon has {daemon_rss_mib} MiB of resident memory and the controller {controller_rss_mib} MiB; " +
			"idle, they use {daemon_cpu_percent} % and {controller_cpu_percent} % of a core.",
	},
	Quoted: []string{
		"services", "start_s", "daemon_rss_mib", "daemon_cpu_percent", "controller_rss_mib", "controller_cpu_percent",
		"cold_ms",
	},
}
