// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"wangell.loutres.me/lab/proxy"
	"wangell.loutres.me/lab/report"
)

// The names of the reports: on a cluster, and on one machine.
const (
	reportName  = "balance"
	machineName = "balance-machine"
)

const howMachine = `A service of %[1]d pods on one machine without Kubernetes, behind Wangell (its service address), and
behind Wangell with balancing.level: Request, where Envoy chooses a pod for each request. The answers name the address
of the pod that they come from. Clients are Go programs with net/http in a network namespace that is linked to the
machine's; each thread makes one request after the other. `

const howCluster = `A service of %[1]d pods on a cluster of several nodes on one machine: behind kube-proxy in nftables
mode (ClusterIP), behind Wangell (its service address), behind Wangell with balancing.level: Request, where the Envoy of
the client's node chooses a pod for each request, and, if the cluster has it, behind Knative's Kourier (by the node
port of its gateway's node), with as many pods, no limit of concurrency, and no activator in the path. The answers
name the pod that they come from. Clients are Go programs with net/http in the network namespace of a pod of the first
node; each thread makes one request after the other. `

const how = `A pool is net/http's: a request
takes the connection that was returned last, or makes a new one if none is free. Kube-proxy balances connections, not
requests, as Wangell does by default: everything on one connection goes to one pod. So with few connections the busiest
pod is far above the mean, and a pool that uses some connections more than others is uneven even if its connections are
spread evenly. Wangell counts the flows that are open when a new one arrives (least open flows): connections that
follow each other are spread in turn. With Request, pods take turns. A connection is counted for the pod that answered
it last. The server answers at once, or uses %[2]v of processor time for each answer. Of several rounds, the counts of
the busiest pod of each are added up, those of the second, and so on; percentiles and ratios are the medians of the
rounds'. Envoy's processor time is that of all nodes, its memory that of the largest without files. Client, Envoy and
pods share the machine's cores.`

// newReport makes the report from samples of one machine, or of a cluster. The caller adds time, parameters and
// versions.
func newReport(all []Sample, machine bool) *report.Report {
	samples := together(all)
	modes := modesOf(samples)
	name, title, where, first := reportName, "Balancing: which pods get the requests", howCluster, answer
	if machine {
		name, title = machineName, "Balancing on one machine: which pods get the requests"
		where, first = howMachine, machineAnswer
	}
	return &report.Report{
		Name: name, Title: title, Raw: all, Answer: first,
		How:     fmt.Sprintf(where+how, replicas, work),
		Summary: summary(modes, all), Tables: tables(samples), Figure: figure(modes, samples),
	}
}

// modesOf returns the measured modes.
func modesOf(samples []Sample) []string {
	return slices.DeleteFunc(slices.Clone(AllModes), func(mode string) bool {
		return !slices.ContainsFunc(samples, func(s Sample) bool { return s.Mode == mode })
	})
}

// ofPattern returns the samples of a pattern.
func ofPattern(samples []Sample, p Pattern) []Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s Sample) bool { return s.Pattern != p.Key })
}

// split returns the samples with a server that answers at once, and those with one that works.
func split(samples []Sample) (idle, working []Sample) {
	for _, s := range samples {
		if s.Work > 0 {
			working = append(working, s)
		} else {
			idle = append(idle, s)
		}
	}
	return idle, working
}

// summary returns the values of samples of all rounds.
func summary(modes []string, all []Sample) (out report.Summary) {
	samples := together(all)
	idle, working := split(all)
	out = append(out, perPattern("", "", idle)...)
	out = append(out, perPattern(workPrefix, fmt.Sprintf(", %v of work", work), working)...)
	for _, mode := range modes {
		failed := 0
		for _, s := range samples {
			if s.Mode == mode {
				failed += s.Failed
			}
		}
		out = append(out, report.Value{Key: "failed_requests_" + mode, Value: float64(failed),
			Meaning: mode + ": failed requests"})
	}
	for _, mode := range requestModes {
		out = append(out, envoySummary(mode, "", "", idle)...)
		out = append(out, envoySummary(mode, workPrefix, fmt.Sprintf(", %v of work", work), working)...)
	}
	return out
}

// perPattern are the values of each pattern, from samples of all rounds. Keys begin with prefix, and meanings have more
// to them.
func perPattern(prefix, more string, all []Sample) (out report.Summary) {
	for _, p := range Patterns {
		rounds := ofPattern(all, p)
		of := together(rounds)
		add := func(key, meaning string, value func(Sample) float64) {
			for _, s := range of {
				out = append(out, report.Value{Key: prefix + p.Key + "_" + key + "_" + s.Mode, Value: value(s),
					Meaning: p.Name + more + ", " + s.Mode + ": " + meaning})
			}
		}
		add("busiest_over_mean", "requests of the busiest pod over the mean",
			func(s Sample) float64 { return busiest(s.Requests) })
		add("req_per_s", "requests per second", Sample.perSecond)
		add("p50_ms", "median time of a request, ms", func(s Sample) float64 { return s.P50 })
		add("p99_ms", "99th percentile, ms", func(s Sample) float64 { return s.P99 })
		connection, request := find(of, proxy.ModeWangell), find(of, proxy.ModeRequest)
		if kourier := find(of, proxy.ModeKnative); kourier != nil && request != nil {
			out = append(out, report.Value{Key: prefix + p.Key + "_request_over_knative",
				Value:   over(rounds, proxy.ModeRequest, proxy.ModeKnative),
				Meaning: p.Name + more + ": requests per second with Request over those with Knative"})
		}
		if connection == nil || request == nil {
			continue
		}
		out = append(out,
			report.Value{Key: prefix + p.Key + "_request_over_connection",
				Value:   over(rounds, proxy.ModeRequest, proxy.ModeWangell),
				Meaning: p.Name + more + ": requests per second with Request over those with Connection"},
			report.Value{Key: prefix + p.Key + "_added_p50_ms", Value: request.P50 - connection.P50,
				Meaning: p.Name + more + ": what Request adds to the median, ms"},
			report.Value{Key: prefix + p.Key + "_added_p99_ms", Value: request.P99 - connection.P99,
				Meaning: p.Name + more + ": what Request adds to the 99th percentile, ms"})
	}
	return out
}

// over returns the ratio of the requests per second of two modes: the median of the rounds, in each of which the two
// are measured one after the other. So what slows the machine down for a while hardly changes it.
func over(rounds []Sample, mode, other string) float64 {
	var ours, others, ratios []float64
	for _, s := range rounds {
		switch s.Mode {
		case mode:
			ours = append(ours, s.perSecond())
		case other:
			others = append(others, s.perSecond())
		}
	}
	for i := range min(len(ours), len(others)) {
		ratios = append(ratios, ours[i]/others[i])
	}
	return report.Median(ratios)
}

// find returns the sample of a mode; nil if there is none.
func find(samples []Sample, mode string) *Sample {
	i := slices.IndexFunc(samples, func(s Sample) bool { return s.Mode == mode })
	if i < 0 {
		return nil
	}
	return &samples[i]
}

// envoySummary says what the Envoys of a mode cost, as perPattern.
func envoySummary(mode, prefix, more string, samples []Sample) report.Summary {
	name := "Envoy"
	if mode != proxy.ModeRequest {
		prefix, name = mode+"_"+prefix, "Envoy of "+mode
	}
	var cpu, memory, requests float64
	for _, s := range samples {
		if s.Mode == mode && s.Envoy != nil {
			cpu += s.Envoy.CPU
			memory = max(memory, s.Envoy.Memory)
			requests += float64(s.answered())
		}
	}
	if requests == 0 {
		return nil
	}
	return report.Summary{
		{Key: prefix + "envoy_cores_per_1000_req_per_s", Value: 1000 * cpu / requests,
			Meaning: name + more + ": cores per 1,000 requests per second"},
		{Key: prefix + "envoy_memory_mib", Value: memory, Meaning: name + more + ": most memory of one, MiB"},
	}
}

func tables(samples []Sample) (out []report.Table) {
	idle, working := split(samples)
	if len(idle) > 0 {
		out = append(out, table("By pattern", idle))
	}
	if len(working) > 0 {
		out = append(out, table(fmt.Sprintf("By pattern, %v of work for each answer", work), working))
	}
	return out
}

func table(title string, samples []Sample) report.Table {
	t := report.Table{Title: title, Header: []string{"pattern", "mode", "requests by pod, %", "busiest over mean",
		"connections by pod", "requests per second", "p50, ms", "p99, ms", "failed"}}
	for _, p := range Patterns {
		for _, s := range ofPattern(samples, p) {
			var shares, connections []string
			total := max(1, float64(s.answered()))
			for _, n := range descending(s.Requests) {
				shares = append(shares, strconv.FormatFloat(100*float64(n)/total, 'f', 1, 64))
			}
			for _, n := range descending(s.Connections) {
				connections = append(connections, strconv.Itoa(n))
			}
			t.Rows = append(t.Rows, []string{p.Name, s.Mode, strings.Join(shares, " "),
				report.Decimal(busiest(s.Requests)), strings.Join(connections, " "), report.Whole(s.perSecond()),
				report.Decimal(s.P50), report.Decimal(s.P99), strconv.Itoa(s.Failed)})
		}
	}
	return t
}

// answer is what the report on a cluster says first.
var answer = report.Answer{
	Sentences: []string{
		"On one reused connection, the busiest of five pods gets {one_connection_busiest_over_mean_wangell} " +
			"times the mean with Wangell's default, Connection, " +
			"{one_connection_busiest_over_mean_wangell_request} times with Request and " +
			"{one_connection_busiest_over_mean_knative} times with Knative.",
		"There, Request answers {one_connection_req_per_s_wangell_request} requests per second, " +
			"{one_connection_request_over_knative} times as many as Knative and " +
			"{one_connection_request_over_connection} times as many as Connection.",
	},
	Quoted: []string{
		"one_connection_busiest_over_mean_wangell", "one_connection_busiest_over_mean_wangell_request",
		"one_connection_busiest_over_mean_knative", "one_connection_req_per_s_wangell",
		"one_connection_req_per_s_wangell_request", "one_connection_req_per_s_knative",
		"five_connections_busiest_over_mean_nftables", "five_connections_busiest_over_mean_wangell",
		"five_connections_busiest_over_mean_wangell_request", "one_connection_added_p50_ms",
	},
}

// machineAnswer is what the report on one machine says first.
var machineAnswer = report.Answer{
	Sentences: []string{
		"On one reused connection, the busiest of five pods gets {one_connection_busiest_over_mean_wangell} " +
			"times the mean with Connection, the default, and {one_connection_busiest_over_mean_wangell_request} " +
			"times with Request.",
		"There, Request answers {one_connection_req_per_s_wangell_request} requests per second, " +
			"{one_connection_request_over_connection} times as many as Connection, and adds " +
			"{one_connection_added_p50_ms} to the median.",
	},
	Quoted: []string{
		"one_connection_busiest_over_mean_wangell", "one_connection_busiest_over_mean_wangell_request",
		"one_connection_req_per_s_wangell", "one_connection_req_per_s_wangell_request",
		"one_connection_request_over_connection", "one_connection_added_p50_ms", "one_connection_added_p99_ms",
		"seven_clients_busiest_over_mean_wangell", "seven_clients_busiest_over_mean_wangell_request",
	},
}
