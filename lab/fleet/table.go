// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"slices"

	"wangell.loutres.me/lab/report"
)

const reportName = "fleet"

const how = `One controller runs in a process of its own; its runtime makes pods at once, on the nodes in turn.
All daemons run in another process, on the same machine: each has the wire's client, a socket and a session of
its own, and a simulated gate that answers as a gate does (a pod listens, first packets, counters). Both
processes share the machine's cores, so the times include the work of all daemons, which a real cluster has
elsewhere. Join: all daemons start at once; it ends when each has the table of services and the list of all
nodes. Idle: keepalives only. Wakes: services are woken at the given rate, each by another daemon; "the daemon
that asked" is the time from its WAKE until it has the serving pod, "all daemons" until the last one has it.
Change of leader: the controller is killed while all these services are warm, and another one, which has the
services and finds their pods, takes over; the time begins with that, without the Lease's time. It ends when
every daemon has the table, the list of nodes and the pods of all warm services. Bytes are UDP payload of a mean
daemon, in both directions.`

// newReport makes the report from samples. The caller adds time, parameters and versions.
func newReport(s Samples) *report.Report {
	last := func(times []float64) float64 {
		if len(times) == 0 {
			return math.NaN()
		}
		return slices.Max(times)
	}
	idle := s.Idle
	summary := report.Summary{
		{Key: "daemons", Value: float64(s.Daemons), Meaning: "daemons"},
		{Key: "services", Value: float64(s.Services), Meaning: "services"},
		{Key: "join_all_know_ms", Value: max(last(s.Join.Table), last(s.Join.Nodes)),
			Meaning: "join: until every daemon has all services and all nodes"},
		{Key: "join_controller_cpu_s", Value: s.Join.Cost.Controller, Meaning: "join: processor time of the controller (s)"},
		{Key: "join_node_bytes", Value: math.Round(s.Join.Cost.Sent + s.Join.Cost.Received), Meaning: "join: bytes a node"},
		{Key: "idle_controller_cpu_percent", Value: 100 * idle.Controller / idle.Seconds,
			Meaning: "idle: controller, use of one core (%)"},
		{Key: "idle_node_bytes_per_s", Value: math.Round((idle.Sent + idle.Received) / idle.Seconds),
			Meaning: "idle: bytes a node and second"},
		{Key: "wakes", Value: float64(len(s.Wakes.All)), Meaning: "wakes"},
		{Key: "wakes_per_s", Value: float64(len(s.Wakes.All)) / s.Wakes.Sent, Meaning: "wakes asked for per second"},
		{Key: "wake_asker_p50_ms", Value: report.Median(s.Wakes.Asker),
			Meaning: "wake: until the daemon that asked has the pod, median"},
		{Key: "wake_asker_p99_ms", Value: report.Percentile(s.Wakes.Asker, 99), Meaning: "the same, 99th percentile"},
		{Key: "wake_all_know_p50_ms", Value: report.Median(s.Wakes.All),
			Meaning: "wake: until every daemon has the pod, median"},
		{Key: "wake_all_know_p99_ms", Value: report.Percentile(s.Wakes.All, 99), Meaning: "the same, 99th percentile"},
		{Key: "wakes_controller_cpu_s", Value: s.Wakes.Cost.Controller,
			Meaning: "wakes: processor time of the controller (s)"},
		{Key: "wakes_node_bytes", Value: math.Round(s.Wakes.Cost.Sent + s.Wakes.Cost.Received),
			Meaning: "wakes: bytes a node"},
		{Key: "leader_all_know_ms", Value: max(last(s.Leader.Table), last(s.Leader.Nodes), last(s.Leader.Pods)),
			Meaning: "change of leader: until every daemon has everything"},
		{Key: "leader_controller_cpu_s", Value: s.Leader.Cost.Controller,
			Meaning: "change of leader: processor time of the new controller (s)"},
		{Key: "leader_node_bytes", Value: math.Round(s.Leader.Cost.Sent + s.Leader.Cost.Received),
			Meaning: "change of leader: bytes a node"},
		{Key: "controller_rss_mib", Value: max(s.Join.Cost.Resident, idle.Resident, s.Wakes.Cost.Resident,
			s.Leader.Cost.Resident), Meaning: "controller: resident memory at most, of the ends of all parts (MiB)"},
	}
	return &report.Report{
		Name: reportName, Title: "A fleet of daemons and one controller", Raw: s, How: how, Answer: answer, Summary: summary,
		Tables: []report.Table{timesTable(s), costTable(s)}, Figure: figure(s),
	}
}

// timesTable has the time until half, 99 % and all of the daemons, or of the wakes, are there.
func timesTable(s Samples) report.Table {
	t := report.Table{Title: "Times", Header: []string{"", "median (ms)", "99 % (ms)", "all (ms)"}}
	for _, row := range []struct {
		name  string
		times []float64
	}{
		{"join: connected", s.Join.Connected}, {"join: table of services", s.Join.Table},
		{"join: list of nodes", s.Join.Nodes},
		{"wake: the daemon that asked has the pod", s.Wakes.Asker}, {"wake: all daemons have the pod", s.Wakes.All},
		{"change of leader: connected", s.Leader.Connected}, {"change of leader: table of services", s.Leader.Table},
		{"change of leader: list of nodes", s.Leader.Nodes}, {"change of leader: pods", s.Leader.Pods},
	} {
		cells := []string{row.name}
		for _, p := range []float64{50, 99, 100} {
			cells = append(cells, report.Decimal(report.Percentile(row.times, p)))
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

// costTable has the cost of each part.
func costTable(s Samples) report.Table {
	t := report.Table{Title: "Cost", Header: []string{"", "duration (s)", "controller: CPU (s)", "all daemons: CPU (s)",
		"controller: resident (MiB)", "sent by a node (KiB)", "received by a node (KiB)"}}
	for _, row := range []struct {
		name string
		cost Cost
	}{{"join", s.Join.Cost}, {"idle", s.Idle}, {"wakes", s.Wakes.Cost}, {"change of leader", s.Leader.Cost}} {
		c := row.cost
		cells := []string{row.name}
		for _, v := range []float64{c.Seconds, c.Controller, c.Daemons, c.Resident, c.Sent / 1024, c.Received / 1024} {
			cells = append(cells, report.Decimal(v))
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

// answer is what the report says first.
var answer = report.Answer{
	Sentences: []string{
		"With {daemons} daemons and {services} services, everybody knows everything {join_all_know_ms} after " +
			"all daemons join at once, and {leader_all_know_ms} after another controller takes over.",
		"At {wakes_per_s} wakes per second, the daemon that asked knows the pod after {wake_asker_p50_ms} " +
			"(median), and the controller has at most {controller_rss_mib} MiB of resident memory.",
	},
	Quoted: []string{
		"daemons", "services", "join_all_know_ms", "leader_all_know_ms", "wakes_per_s", "wake_asker_p50_ms",
		"wake_all_know_p50_ms", "idle_controller_cpu_percent", "idle_node_bytes_per_s", "controller_rss_mib",
	},
}
