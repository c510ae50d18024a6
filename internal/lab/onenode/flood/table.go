// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"wangell.loutres.me/internal/lab/report"
)

const reportName = "flood"

const how = `An instance of Wangell with a containerd of its own runs in a network namespace. One host of its
link attacks, two others are genuine clients: a near one, and a distant one whose packets to services are held
back in user space for the long round trip. Forged SYNs have random sources in 10.47.0.0/16, ports and sequence
numbers, and right checksums; an XDP program sends them into the node's port of the link. In the flood of a warm
service, four near and four distant clients make one request after another on it, each on a connection of its
own, and another client on another service. In the floods of sleeping services, the pods that forged SYNs have
started are counted in the middle of the flood; then one client uses each of the services, near and distant in
turn. With wakeProof Always, no SYN wakes a service before its client has proven where it is; with Auto, the
first ones do, within the default budgets of wakes. Clients vanish by closing their established connections
without any packet; the flows that are left are those which the service's pod still counts afterwards. The scan
sends one SYN to four ports of every address of the range, from its own address, and answers SYN-ACKs by RST. A
request fails if it has no answer within 30 seconds or the connection is refused or reset. kube-proxy was not
measured in this run. All processes, the attack included, share the machine's cores.`

// newReport makes the report from samples. The caller adds time, parameters and versions.
func newReport(s Samples) *report.Report {
	warm, cold := join(s.Warm.Near, s.Warm.Far), join(s.One.Near, s.One.Far, s.Many.Near, s.Many.Far)
	other := join(s.Warm.Other, s.One.Other, s.Many.Other)
	vanish := join(s.Vanish.Near, s.Vanish.Far, s.Vanish.Other)
	rate := math.NaN()
	for _, p := range []Part{s.Warm, s.One, s.Many} {
		if p.Seconds > 0 && !(p.rate() > rate) {
			rate = p.rate()
		}
	}
	return &report.Report{
		Name: reportName, Title: "The gate under attack", Raw: s, How: how,
		Summary: report.Summary{
			{Key: "forged_syn_per_s", Value: math.Round(rate), Meaning: "forged SYNs per second, in the slowest of the floods"},
			{Key: "warm_genuine_requests", Value: warm.n(), Meaning: "flood of a warm service: genuine requests on it"},
			{Key: "warm_genuine_failed", Value: warm.failed(), Meaning: "of these, failed"},
			{Key: "warm_genuine_p99_ms", Value: warm.p(99), Meaning: "of these, 99th percentile"},
			{Key: "cold_pods_started_by_forged", Value: float64(s.One.Started + s.Many.Started),
				Meaning: "floods of sleeping services: pods that forged SYNs started"},
			{Key: "cold_genuine_requests", Value: cold.n(), Meaning: "floods of sleeping services: genuine requests on them"},
			{Key: "cold_genuine_failed", Value: cold.failed(), Meaning: "of these, failed"},
			{Key: "cold_genuine_p50_ms", Value: cold.p(50), Meaning: "of these, median"},
			{Key: "cold_genuine_p99_ms", Value: cold.p(99), Meaning: "of these, 99th percentile"},
			{Key: "other_service_requests", Value: other.n(), Meaning: "all floods: requests on another service"},
			{Key: "other_service_failed", Value: other.failed(), Meaning: "of these, failed"},
			{Key: "other_service_p99_ms", Value: other.p(99), Meaning: "of these, 99th percentile"},
			{Key: "vanished_clients", Value: float64(s.Vanished), Meaning: "clients that vanished"},
			{Key: "vanished_flows_left", Value: float64(s.VanishedLeft), Meaning: "flows that are left of them soon after"},
			{Key: "vanished_genuine_failed", Value: vanish.failed(), Meaning: "meanwhile: genuine requests that failed"},
			{Key: "scan_services", Value: float64(s.Scanned), Meaning: "scan: sleeping services in the range"},
			{Key: "scan_pods_started", Value: float64(s.Scan.Started), Meaning: "of these, woken"},
			{Key: "kube_proxy_failed", Value: math.NaN(), Meaning: "kube-proxy: failed requests"},
			{Key: "kube_proxy_p99_ms", Value: math.NaN(), Meaning: "kube-proxy: 99th percentile"},
		},
		Tables: []report.Table{attackTable(s), requestTable(s)},
		Figure: figure(s),
	}
}

// rate returns the forged SYNs per second that were sent and arrived; those of genuine clients among what arrived are
// few.
func (p Part) rate() float64 { return float64(min(p.Sent, p.Arrived)) / p.Seconds }

// join puts requests of several kinds together.
func join(all ...Requests) (sum Requests) {
	for _, r := range all {
		sum.Times = append(sum.Times, r.Times...)
		sum.Failed += r.Failed
		sum.Errors = append(sum.Errors, r.Errors...)
	}
	return sum
}

func (r Requests) n() float64                { return float64(len(r.Times) + r.Failed) }
func (r Requests) failed() float64           { return float64(r.Failed) }
func (r Requests) p(percent float64) float64 { return report.Percentile(r.Times, percent) }

func attackTable(s Samples) report.Table {
	t := report.Table{Title: "Attacks", Header: []string{"", "forged SYNs", "arrived per second", "pods started"}}
	for _, row := range []struct {
		name string
		part Part
	}{
		{"warm service", s.Warm}, {"one sleeping service", s.One}, {"many sleeping services", s.Many},
	} {
		t.Rows = append(t.Rows, []string{row.name, strconv.Itoa(row.part.Sent), report.Whole(row.part.rate()),
			strconv.Itoa(row.part.Started)})
	}
	return t
}

// kinds are all kinds of requests, in the order of the report.
func kinds(s Samples) []kind {
	return []kind{
		{"calm: near", s.Calm.Near}, {"calm: distant", s.Calm.Far}, {"calm: other service", s.Calm.Other},
		{"warm: near", s.Warm.Near}, {"warm: distant", s.Warm.Far}, {"warm: other service", s.Warm.Other},
		{"one cold: near", s.One.Near}, {"one cold: other service", s.One.Other},
		{"many cold: near", s.Many.Near}, {"many cold: distant", s.Many.Far}, {"many cold: other service", s.Many.Other},
		{"vanished: near", s.Vanish.Near}, {"vanished: distant", s.Vanish.Far}, {"vanished: other service", s.Vanish.Other},
	}
}

type kind struct {
	name string
	r    Requests
}

func requestTable(s Samples) report.Table {
	t := report.Table{Title: "Genuine requests", Header: []string{"attacked: client", "requests", "failed", "median (ms)",
		"99 % (ms)", "longest (ms)", "errors"}}
	for _, k := range kinds(s) {
		if k.r.n() == 0 {
			continue
		}
		errors := slices.Compact(slices.Sorted(slices.Values(k.r.Errors)))
		t.Rows = append(t.Rows, []string{k.name, report.Whole(k.r.n()), report.Whole(k.r.failed()),
			report.Decimal(k.r.p(50)), report.Decimal(k.r.p(99)), report.Decimal(k.r.p(100)), strings.Join(errors, "; ")})
	}
	return t
}
