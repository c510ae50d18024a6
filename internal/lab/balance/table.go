// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"wangell.loutres.me/internal/lab/report"
)

const reportName = "balance"

const how = `A service of %d pods on a cluster of several nodes on one machine, once behind kube-proxy in nftables
mode (ClusterIP) and once behind Wangell (its service address). The answers name the pod that they come from. Clients
are Go programs with net/http in the network namespace of a pod of the first node; each thread makes one request after
the other. A pool is net/http's: a request takes the connection that was returned last, or makes a new one if none is
free. Both sides balance connections, not requests: everything on one connection goes to one pod. So with few
connections the busiest pod is far above the mean, and a pool that uses some connections more than others is uneven
even if its connections are spread evenly. Least open flows counts the flows that are open when a new one arrives:
connections that follow each other are spread in turn. Client and pods share the machine's cores.`

// newReport makes the report from samples. The caller adds time, parameters and versions.
func newReport(samples []Sample) *report.Report {
	modes := modesOf(samples)
	return &report.Report{
		Name: reportName, Title: "Balancing: which pods get the requests", Raw: samples, How: fmt.Sprintf(how, replicas),
		Summary: summary(modes, samples), Tables: []report.Table{table(samples)}, Figure: figure(modes, samples),
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

func summary(modes []string, samples []Sample) (out report.Summary) {
	for _, p := range Patterns {
		for _, s := range ofPattern(samples, p) {
			out = append(out, report.Value{Key: p.Key + "_busiest_over_mean_" + s.Mode, Value: busiest(s.Requests),
				Meaning: p.Name + ", " + s.Mode + ": requests of the busiest pod over the mean"})
		}
		for _, s := range ofPattern(samples, p) {
			out = append(out, report.Value{Key: p.Key + "_req_per_s_" + s.Mode, Value: s.perSecond(),
				Meaning: p.Name + ", " + s.Mode + ": requests per second"})
		}
	}
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
	return out
}

func table(samples []Sample) report.Table {
	t := report.Table{Title: "By pattern", Header: []string{"pattern", "mode", "requests by pod, %", "busiest over mean",
		"connections by pod", "requests per second", "failed"}}
	for _, p := range Patterns {
		for _, s := range ofPattern(samples, p) {
			var shares, connections []string
			total := max(1, s.perSecond()*s.Seconds)
			for _, n := range descending(s.Requests) {
				shares = append(shares, strconv.FormatFloat(100*float64(n)/total, 'f', 1, 64))
			}
			for _, n := range descending(s.Connections) {
				connections = append(connections, strconv.Itoa(n))
			}
			t.Rows = append(t.Rows, []string{p.Name, s.Mode, strings.Join(shares, " "),
				report.Decimal(busiest(s.Requests)), strings.Join(connections, " "), report.Whole(s.perSecond()),
				strconv.Itoa(s.Failed)})
		}
	}
	return t
}
