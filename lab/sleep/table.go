// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"fmt"
	"strings"

	"wangell.loutres.me/lab/report"
)

const reportName = "sleep"

const how = `One instance of Wangell with a containerd of its own runs in a network namespace, and clients in another.
Each program is a service five times: one that is always warm, one whose pod is frozen a second after its last packet,
one that is frozen and whose memory is given back to the instance's own zram swap, one with a prepared pod, and one
that is cold. In each round every program is asked once in each state, on a connection of its own; the time runs from
connect() to the first byte of the answer. Clients, also those on a cluster and of Knative, use sockets that block a
thread: with Go's network poller, a client that has rested for a moment takes about as long as the service. A hundred
requests at once come from one thread. Times of postgres include the log-in, that of connecting as well, and the
answer to a question. Redis has 100,000 values of 1,000 bytes that compress to half, and is asked for one of them; it
keeps nothing on disk, so that it has none when it starts. PostgreSQL has its data on a persistent volume, with which
no pod can be prepared. Python has numpy loaded with a table of 64 MB; java is the JDK's own web server. Memory is
that of the pod's cgroup just before the request, page cache included, without the shim's; that of prepared pods is
the mean of all those of the instance, whose programs have not started. The processor use is what the kernel counted,
in steps of 10 ms, half a minute after all pods were frozen; most of it is that of shims, each of which collects its
garbage every 30 s. Connections are kept to the hello image, and each is used again at the end. On a cluster, services
of the hello image are asked in the same way from a host outside, and a Knative service by its Kourier, whenever it
has no pod any more; memory is what processes have of their own there, without files. Requests are those of a pod
for processors, as the scheduler counts them.`

// newReport makes the report from samples. The caller adds time, parameters and versions.
func newReport(s Samples) *report.Report {
	r := &report.Report{Name: reportName, Title: "Asleep: latency against memory kept", Raw: s, Answer: answer,
		How: strings.ReplaceAll(how, "\n", " "), Figure: figure(s)}
	answers := report.Table{Title: "Answers (ms) and memory (MB, medians)", Header: []string{"app", "state", "connect p50",
		"first byte p50", "p99", "resident", "swapped", "samples"}}
	for _, app := range measured(s) {
		for _, state := range states {
			times := of(s, app, state, firstByte)
			if len(times) == 0 {
				continue
			}
			p50, p99 := report.Median(times), report.Percentile(times, 99)
			rss := report.Median(of(s, app, state, resident))
			if state == stateCold {
				rss = 0
			}
			key, what := app+"_"+state, app+", "+state
			r.Summary = append(r.Summary,
				report.Value{Key: key + "_p50_ms", Value: p50, Meaning: what + ": first byte, median"},
				report.Value{Key: key + "_p99_ms", Value: p99, Meaning: what + ": first byte, 99th percentile"},
				report.Value{Key: key + "_rss_mb", Value: rss, Meaning: what + ": resident memory (MB)"})
			answers.Rows = append(answers.Rows, []string{app, state, report.Decimal(report.Median(of(s, app, state, connect))),
				report.Decimal(p50), report.Decimal(p99), report.Decimal(rss),
				report.Decimal(report.Median(of(s, app, state, swapped))), fmt.Sprint(len(times))})
		}
	}
	if len(answers.Rows) > 0 {
		r.Tables = append(r.Tables, answers)
	}
	addSleepers(r, s.Sleepers)
	addSurvival(r, s.Survival)
	addFlap(r, s.Flap)
	addKube(r, s.Kube)
	return r
}

func addSleepers(r *report.Report, k *Sleepers) {
	if k == nil {
		return
	}
	each := (k.Resident + k.Shims) / float64(k.Pods)
	r.Summary = append(r.Summary,
		report.Value{Key: "sleepers", Value: float64(k.Pods), Meaning: "frozen pods at once"},
		report.Value{Key: "sleeper_mb", Value: each, Meaning: "resident memory for each, shim and all (MB)"},
		report.Value{Key: "sleeper_rss_mb", Value: k.Resident / float64(k.Pods),
			Meaning: "resident memory of each pod itself (MB)"},
		report.Value{Key: "sleepers_cpu_percent", Value: k.Parts,
			Meaning: "daemon and controller, all frozen: use of one core (%)"},
		report.Value{Key: "sleepers_all_cpu_percent", Value: k.CPU,
			Meaning: "with containerd and shims: use of one core (%)"},
		report.Value{Key: "sleepers_cpu_s_per_hour", Value: 36 * k.CPU,
			Meaning: "all of them: processor time for an hour asleep (s)"},
		report.Value{Key: "sleepers_thaw_p50_ms", Value: report.Median(k.Thaw),
			Meaning: "first byte of one, the others frozen: median"},
		report.Value{Key: "sleepers_thaw_p99_ms", Value: report.Percentile(k.Thaw, 99),
			Meaning: "first byte of one, the others frozen: 99th percentile"},
		report.Value{Key: "reclaimed_storm_p99_ms", Value: report.Percentile(k.Storm, 99),
			Meaning: fmt.Sprintf("first byte of %d at once, reclaimed: 99th percentile", len(k.Storm))})
}

func addSurvival(r *report.Report, k *Survival) {
	if k == nil {
		return
	}
	r.Summary = append(r.Summary,
		report.Value{Key: "connections_tried", Value: float64(k.Tried), Meaning: "connections kept open"},
		report.Value{Key: "connections_survived", Value: float64(k.Survived), Meaning: "of these, used at the end"},
		report.Value{Key: "freezes", Value: float64(k.Freezes), Meaning: "freezes and thaws of their services"},
		report.Value{Key: "kept_p50_ms", Value: report.Median(k.Exchange),
			Meaning: "exchange on a kept connection, frozen: median"},
		report.Value{Key: "kept_p99_ms", Value: report.Percentile(k.Exchange, 99),
			Meaning: "exchange on a kept connection, frozen: 99th percentile"})
	if len(k.Storm) > 0 {
		r.Summary = append(r.Summary, report.Value{Key: "kept_storm_p99_ms", Value: report.Percentile(k.Storm, 99),
			Meaning: fmt.Sprintf("the same, %d at once: 99th percentile", k.Services)})
	}
	if len(k.NewStorm) > 0 {
		r.Summary = append(r.Summary, report.Value{Key: "storm_p99_ms", Value: report.Percentile(k.NewStorm, 99),
			Meaning: fmt.Sprintf("first byte of %d at once, frozen, on new connections: 99th percentile", k.Services)})
	}
	row := func(when string, n Resources) []string {
		return []string{when, fmt.Sprint(n.Files), fmt.Sprint(n.Threads), fmt.Sprint(n.Cgroups)}
	}
	r.Tables = append(r.Tables, report.Table{Title: "What the instance has, all pods frozen",
		Header: []string{"when", "open files", "threads", "cgroups"},
		Rows:   [][]string{row("after the first freezes", k.Before), row("at the end", k.After)}})
}

func addFlap(r *report.Report, k *Flap) {
	if k == nil {
		return
	}
	r.Summary = append(r.Summary,
		report.Value{Key: "flap_requests", Value: float64(k.Requests),
			Meaning: fmt.Sprintf("requests at moments of freezing, in %.0f s", k.Seconds)},
		report.Value{Key: "flap_freezes", Value: float64(k.Freezes), Meaning: "freezes meanwhile"},
		report.Value{Key: "flap_failed", Value: float64(k.Failed), Meaning: "of the requests, failed"},
		report.Value{Key: "flap_longest_ms", Value: k.Longest, Meaning: "the longest of them"})
}

// answer is what the report says first.
var answer = report.Answer{
	Sentences: []string{
		"The first byte takes {hello_frozen_p50_ms} from a frozen service, {hello_reclaimed_p50_ms} if its " +
			"memory was given back too, {hello_prepared_p50_ms} from a prepared one and {hello_cold_p50_ms} from " +
			"a cold one (medians).",
		"{connections_survived} of {connections_tried} connections outlived {freezes} freezes, and " +
			"{flap_failed} of {flap_requests} requests failed beside freezes.",
	},
	Quoted: []string{
		"hello_warm_p50_ms", "hello_frozen_p50_ms", "hello_reclaimed_p50_ms", "hello_prepared_p50_ms",
		"hello_cold_p50_ms", "connections_survived", "flap_failed", "k8s_frozen_p50_ms", "k8s_cold_p50_ms",
		"knative_cold_p50_ms",
	},
}
