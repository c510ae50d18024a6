// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"fmt"
	"strconv"
	"strings"

	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/report"
)

func fixedSummary(p plan, samples []FixedSample) (s report.Summary) {
	for _, mode := range p.modes {
		s = append(s, report.Value{Key: "fixed_mean_s_" + mode, Value: report.Mean(fixedTimes(samples, mode)),
			Meaning: "fixed load, " + mode + ": mean time of a run (s)"})
	}
	for _, mode := range p.modes {
		s = append(s, report.Value{Key: "fixed_stddev_s_" + mode, Value: report.StdDev(fixedTimes(samples, mode)),
			Meaning: "fixed load, " + mode + ": standard deviation (s)"})
	}
	return s
}

func fixedTable(p plan, samples []FixedSample) report.Table {
	t := report.Table{
		Title: fmt.Sprintf("Fixed load: %d requests, %d pods", p.requests, fixedReplicas),
		Header: []string{"mode", "runs", "mean (s)", "standard deviation (s)", "median (s)", "failed requests",
			"aborted runs"},
	}
	for _, mode := range p.modes {
		times, failed, aborted := fixedTimes(samples, mode), 0, 0
		for _, s := range samples {
			if s.Mode == mode {
				failed += s.Lost()
				if s.Aborted != "" {
					aborted++
				}
			}
		}
		t.Rows = append(t.Rows, []string{mode, strconv.Itoa(len(times)), report.Decimal(report.Mean(times)),
			report.Decimal(report.StdDev(times)), report.Decimal(report.Median(times)), strconv.Itoa(failed),
			strconv.Itoa(aborted)})
	}
	return t
}

func ratesReport(p plan, samples []RateSample) *report.Report {
	return &report.Report{
		Name: ratesName, Title: "Short connections, and requests on persistent ones, per second", Raw: samples,
		How: howAll + fmt.Sprintf(`The load server is the hello image. %d clients with different addresses run at the same
			time, with %d connections in all, against %d pods: ab with a connection per request, and wrk with persistent
			connections. The limit, direct, uses no Service: each client asks another pod. The machine's own speed changes
			within seconds by more than the modes differ. So a mode of kube-proxy, Wangell and direct take turns every few
			seconds, and a repetition is the sum of all turns of a mode. For clients on the LAN kube-proxy masquerades, so
			that all connections to a pod come from one address. Ports are reused within a minute, and the pod's kernel
			drops SYNs whose time stamp is older than that of the last connection from there (PAWS). Clients see this as a
			second or more of waiting, and the more the longer a run lasts.`, rateHosts, concurrency, fixedReplicas),
		Answer:  ratesAnswer,
		Summary: ratesSummary(p, samples), Tables: []report.Table{ratesTable(p, samples)}, Figure: ratesFigure(p, samples),
	}
}

func ratesSummary(p plan, samples []RateSample) (s report.Summary) {
	if len(samples) == 0 {
		return nil
	}
	for _, v := range []struct {
		key, clients, what string
		keep               bool
	}{
		{"short_conn_per_s_", cluster.VantagePods, "short connections per second", false},
		{"keepalive_req_per_s_", cluster.VantagePods, "requests per second on persistent connections", true},
		{"lan_short_conn_per_s_", cluster.VantageLAN, "short connections per second, clients on the LAN", false},
		{"lan_keepalive_req_per_s_", cluster.VantageLAN,
			"requests per second on persistent connections, clients on the LAN", true},
	} {
		for _, mode := range withDirect(p.modes) {
			s = append(s, report.Value{Key: v.key + mode, Meaning: v.what + ", " + mode + ": median",
				Value: report.Median(rateValues(samples, mode, v.clients, v.keep))})
		}
	}
	return s
}

func ratesTable(p plan, samples []RateSample) report.Table {
	t := report.Table{
		Title: "Rates (medians of repetitions, per second)",
		Header: []string{"mode", "clients", "short connections", "failed", "requests on persistent connections",
			"failed"},
	}
	for _, clients := range rateClients {
		for _, mode := range withDirect(p.modes) {
			row := []string{mode, clients}
			for _, keep := range []bool{false, true} {
				failed := 0
				for _, s := range samples {
					if s.Mode == mode && s.Clients == clients && s.KeepAlive == keep {
						failed += s.Lost()
					}
				}
				row = append(row, report.Whole(report.Median(rateValues(samples, mode, clients, keep))),
					strconv.Itoa(failed))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

func replicasReport(p plan, samples []ReplicaSample) *report.Report {
	return &report.Report{
		Name: replicasName, Title: "Time of a fixed load by the number of pods", Raw: samples,
		How: howAll + `The load server is the hello image. The last setting is autoscaled, 1 to 3 pods, by the experiment's
			own autoscaler (see the report on alternating load), starting from one pod.`,
		Answer:  replicasAnswer,
		Summary: replicasSummary(p, samples), Tables: replicasTables(p, samples), Figure: replicasFigure(p, samples),
	}
}

func replicasSummary(p plan, samples []ReplicaSample) (s report.Summary) {
	for _, n := range p.replicas {
		for _, mode := range p.modes {
			key := "replicas_" + strings.ReplaceAll(replicasText(n), "-", "_to_") + "_mean_s_" + mode
			s = append(s, report.Value{Key: key, Value: report.Mean(replicaTimes(samples, mode, n)),
				Meaning: replicasText(n) + " pods, " + mode + ": mean time of a run (s)"})
		}
	}
	return s
}

func replicasTables(p plan, samples []ReplicaSample) []report.Table {
	mean := report.Table{Title: "Mean time of a run (s), by pods", Header: []string{"mode"}}
	for _, n := range p.replicas {
		mean.Header = append(mean.Header, replicasText(n))
	}
	each := report.Table{Title: "Time of each repetition, autoscaled (s)", Header: []string{"mode"}}
	for i := range p.repetitions {
		each.Header = append(each.Header, strconv.Itoa(i+1))
	}
	for _, mode := range p.modes {
		row := []string{mode}
		for _, n := range p.replicas {
			row = append(row, report.Decimal(report.Mean(replicaTimes(samples, mode, n))))
		}
		mean.Rows = append(mean.Rows, row)
		row = []string{mode}
		for _, s := range samples {
			if s.Mode == mode && s.Replicas == 0 {
				cell := report.Decimal(s.Seconds)
				if s.Aborted != "" {
					cell = "broke off"
				}
				row = append(row, cell)
			}
		}
		each.Rows = append(each.Rows, row)
	}
	return []report.Table{mean, each}
}

// ratesAnswer is what the report on rates says first.
var ratesAnswer = report.Answer{
	Sentences: []string{
		"Wangell opens {short_conn_per_s_wangell} short connections per second, kube-proxy " +
			"{short_conn_per_s_iptables} with iptables and {short_conn_per_s_nftables} with nftables, and clients " +
			"without a Service {short_conn_per_s_direct} (medians).",
		"For clients on the LAN, these are {lan_short_conn_per_s_wangell}, {lan_short_conn_per_s_iptables}, " +
			"{lan_short_conn_per_s_nftables} and {lan_short_conn_per_s_direct}.",
	},
	Quoted: []string{
		"short_conn_per_s_iptables", "short_conn_per_s_nftables", "short_conn_per_s_wangell",
		"short_conn_per_s_direct", "keepalive_req_per_s_iptables", "keepalive_req_per_s_nftables",
		"keepalive_req_per_s_wangell", "lan_short_conn_per_s_iptables", "lan_short_conn_per_s_nftables",
		"lan_short_conn_per_s_wangell",
	},
}

// replicasAnswer is what the report on numbers of pods says first.
var replicasAnswer = report.Answer{
	Sentences: []string{
		"With 3 pods, the load takes {replicas_3_mean_s_wangell} s with Wangell, {replicas_3_mean_s_iptables} " +
			"s with kube-proxy's iptables and {replicas_3_mean_s_nftables} s with its nftables (means).",
		"Autoscaled from 1 to 3 pods, it takes {replicas_1_to_3_mean_s_wangell} s, " +
			"{replicas_1_to_3_mean_s_iptables} s and {replicas_1_to_3_mean_s_nftables} s.",
	},
	Quoted: []string{
		"replicas_1_mean_s_iptables", "replicas_1_mean_s_nftables", "replicas_1_mean_s_wangell",
		"replicas_3_mean_s_iptables", "replicas_3_mean_s_nftables", "replicas_3_mean_s_wangell",
		"replicas_1_to_3_mean_s_iptables", "replicas_1_to_3_mean_s_nftables", "replicas_1_to_3_mean_s_wangell",
	},
}
