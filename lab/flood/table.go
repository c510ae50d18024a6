// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/lab/report"
)

const reportName = "flood"

const how = `An instance of Wangell with a containerd of its own runs in a network namespace. One host of its
link attacks, two others are genuine clients: a near one, and a distant one whose packets to services are held
back in user space for the long round trip. Forged SYNs have random sources in 10.47.0.0/16, ports and sequence
numbers, and right checksums; an XDP program sends them into the node's port of the link, from all processors and
to a queue of the node for each of them. The answers to them end where the link begins. In the flood of a warm
service, four near and four distant clients make one request after another on it, each on a connection of its
own, and another client on another service. Before, one client uses each of as many sleeping services as are
attacked together, near and distant in turn, all at once. In the floods of sleeping services, the pods that forged
SYNs have started are counted in the middle of the flood; then one client uses each of the services, near and
distant in turn. With wakeProof Always, no SYN wakes a service before its client has proven where it is; with Auto, the
first ones do, within the default budgets of wakes. Clients vanish by closing their established connections
without any packet; the flows that are left are those which the service's pod still counts afterwards. The scan
sends one SYN to four ports of every address of the range, from its own address, and its host answers as any
does: by RST. It scans twice, as scanners repeat what is not answered; the second time, the host has answered
challenges and so proven where it is. A
request fails if it has no answer within 30 seconds or the connection is refused or reset. All processes, the
attack included, share the machine's cores.`

const howPeers = ` On a cluster, each peer has a service with one warm pod: Wangell, Knative behind Kourier with the
activator in the path, and kube-proxy with a plain Deployment. In turn, first four clients on the nodes' LAN use it
without an attack, for half of the time, then during a flood from the same sources. The flood arrives at the node
that has the address of the service, by the same XDP program; for Wangell and kube-proxy this is the first node, to
which clients have a route. Wangell's own program is on that device for every peer.`

const howNoPeers = ` kube-proxy and Knative were not measured in this run: they need a cluster.`

// newReport makes the report from samples. The caller adds time, parameters and versions.
func newReport(s Samples) *report.Report {
	warm, cold := join(s.Warm.Near, s.Warm.Far), join(s.One.Near, s.One.Far, s.Many.Near, s.Many.Far)
	other := join(s.Warm.Other, s.One.Other, s.Many.Other)
	calm := join(s.CalmMany.Near, s.CalmMany.Far)
	vanish := join(s.Vanish.Near, s.Vanish.Far, s.Vanish.Other)
	rate := math.NaN()
	for _, p := range []Part{s.Warm, s.One, s.Many} {
		if p.Seconds > 0 && !(p.rate() > rate) {
			rate = p.rate()
		}
	}
	text, tables := how+howNoPeers, []report.Table{attackTable(s), scanTable(s), requestTable(s)}
	if len(s.Peers) > 0 {
		text, tables = how+howPeers, append(tables, peerTable(s))
	}
	return &report.Report{
		Name: reportName, Title: "The gate under attack", Raw: s, How: text, Answer: answer,
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
			{Key: "cold_calm_p50_ms", Value: calm.p(50),
				Meaning: "many sleeping services woken at once without a flood, median"},
			{Key: "cold_calm_p99_ms", Value: calm.p(99), Meaning: "of these, 99th percentile"},
			{Key: "other_service_requests", Value: other.n(), Meaning: "all floods: requests on another service"},
			{Key: "other_service_failed", Value: other.failed(), Meaning: "of these, failed"},
			{Key: "other_service_p99_ms", Value: other.p(99), Meaning: "of these, 99th percentile"},
			{Key: "vanished_clients", Value: float64(s.Vanished), Meaning: "clients that vanished"},
			{Key: "vanished_flows_left", Value: float64(s.VanishedLeft), Meaning: "flows that are left of them soon after"},
			{Key: "vanished_genuine_failed", Value: vanish.failed(), Meaning: "meanwhile: genuine requests that failed"},
			{Key: "scan_services", Value: float64(s.Scanned), Meaning: "scan: sleeping services of each wakeProof in the range"},
			{Key: "scan_pods_started", Value: s.woken(0, v1alpha1.WakeProofAlways),
				Meaning: "woken by one SYN for each port, with wakeProof Always"},
			{Key: "scan_auto_pods_started", Value: s.woken(0, v1alpha1.WakeProofAuto), Meaning: "the same, with Auto"},
			{Key: "scan_repeated_pods_started", Value: s.woken(scanPasses-1, v1alpha1.WakeProofAlways),
				Meaning: "woken once the scan was repeated, with Always"},
			{Key: "scan_repeated_auto_pods_started", Value: s.woken(scanPasses-1, v1alpha1.WakeProofAuto),
				Meaning: "the same, with Auto"},
			{Key: "wangell_cluster_failed", Value: s.peer(PeerWangell).failed(),
				Meaning: "on a cluster: flood of Wangell: failed requests"},
			{Key: "wangell_cluster_p99_ms", Value: s.peer(PeerWangell).p(99), Meaning: "99th percentile"},
			{Key: "kube_proxy_failed", Value: s.peer(PeerKubeProxy).failed(),
				Meaning: "flood of kube-proxy: failed requests"},
			{Key: "kube_proxy_p99_ms", Value: s.peer(PeerKubeProxy).p(99), Meaning: "99th percentile"},
			{Key: "knative_failed", Value: s.peer(PeerKnative).failed(), Meaning: "flood of Knative: failed requests"},
			{Key: "knative_p99_ms", Value: s.peer(PeerKnative).p(99), Meaning: "99th percentile"},
		},
		Tables: tables,
		Figure: figure(s),
	}
}

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

func scanTable(s Samples) report.Table {
	t := report.Table{Title: "Scans", Header: []string{"", "SYNs", "seconds"}}
	for _, proof := range scanProofs {
		t.Header = append(t.Header, fmt.Sprintf("woken of %d with %s", s.Scanned, proof))
	}
	for i, pass := range s.Scans {
		row := []string{fmt.Sprintf("scan %d", i+1), strconv.Itoa(pass.Sent), report.Decimal(pass.Seconds)}
		for _, proof := range scanProofs {
			row = append(row, report.Whole(s.woken(i, proof)))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func peerTable(s Samples) report.Table {
	t := report.Table{Title: "Peers on a cluster", Header: []string{"", "arrived per second", "requests", "failed",
		"median (ms)", "99 % (ms)", "longest (ms)", "errors"}}
	for _, p := range s.Peers {
		for _, row := range []struct {
			name, rate string
			r          Requests
		}{{p.Name + ": calm", "", p.Calm}, {p.Name + ": flood", report.Whole(p.Flood.rate()), p.Flood.Near}} {
			t.Rows = append(t.Rows, append([]string{row.name, row.rate}, cells(row.r)...))
		}
	}
	return t
}

// cells are the cells of requests in a table.
func cells(r Requests) []string {
	errors := slices.Compact(slices.Sorted(slices.Values(r.Errors)))
	return []string{report.Whole(r.n()), report.Whole(r.failed()), report.Decimal(r.p(50)), report.Decimal(r.p(99)),
		report.Decimal(r.p(100)), strings.Join(errors, "; ")}
}

func requestTable(s Samples) report.Table {
	t := report.Table{Title: "Genuine requests", Header: []string{"attacked: client", "requests", "failed", "median (ms)",
		"99 % (ms)", "longest (ms)", "errors"}}
	for _, k := range ownKinds(s) {
		if k.r.n() == 0 {
			continue
		}
		t.Rows = append(t.Rows, append([]string{k.name}, cells(k.r)...))
	}
	return t
}

// answer is what the report says first.
var answer = report.Answer{
	Sentences: []string{
		"Under {forged_syn_per_s} forged SYNs per second, {warm_genuine_failed} of {warm_genuine_requests} " +
			"genuine requests to a warm service failed, and {cold_genuine_failed} of {cold_genuine_requests} to " +
			"sleeping services; forged SYNs started {cold_pods_started_by_forged} pods.",
		"On a cluster under the same flood, {wangell_cluster_failed} requests failed with Wangell, " +
			"{kube_proxy_failed} with kube-proxy and {knative_failed} with Knative.",
	},
	Quoted: []string{
		"forged_syn_per_s", "warm_genuine_failed", "warm_genuine_p99_ms", "cold_pods_started_by_forged",
		"cold_genuine_failed", "cold_genuine_p50_ms", "other_service_failed", "wangell_cluster_failed",
		"kube_proxy_failed", "knative_failed",
	},
}
