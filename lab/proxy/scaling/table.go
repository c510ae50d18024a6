// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"fmt"

	"wangell.loutres.me/lab/report"
)

// newReports makes the report of everything, and one of each part that has samples. The caller adds times, parameters
// and versions.
func newReports(p plan, raw Samples) []*report.Report {
	all := []*report.Report{mainReport(p, raw)}
	if len(raw.Rates) > 0 {
		all = append(all, ratesReport(p, raw.Rates))
	}
	if len(raw.Replicas) > 0 {
		all = append(all, replicasReport(p, raw.Replicas))
	}
	if len(raw.Alternating) > 0 {
		all = append(all, alternatingReport(p, raw.Alternating))
	}
	if len(raw.Flap) > 0 {
		all = append(all, flapReport(p, raw.Flap))
	}
	return all
}

func mainReport(p plan, raw Samples) *report.Report {
	r := &report.Report{
		Name: reportName, Title: "Balancing and scaling: kube-proxy and Wangell side by side", Raw: raw,
		How: howAll + fmt.Sprintf(`The load server is the hello image. Fixed load: ab, %d requests on a connection each, %d
			connections at a time, against %d pods. The other parts have reports of their own.`,
			p.requests, concurrency, fixedReplicas),
		Answer: answer, Figure: fixedFigure(p, raw.Fixed),
	}
	if len(raw.Fixed) > 0 {
		r.Summary = fixedSummary(p, raw.Fixed)
		r.Tables = []report.Table{fixedTable(p, raw.Fixed)}
	}
	for _, s := range []report.Summary{
		alternatingSummary(raw.Alternating), ratesSummary(p, raw.Rates), flapSummary(p, raw.Flap),
	} {
		r.Summary = append(r.Summary, s...)
	}
	return r
}

// answer is what the report says first.
var answer = report.Answer{
	Sentences: []string{
		"The fixed load takes {fixed_mean_s_wangell} s with Wangell, {fixed_mean_s_iptables} s with " +
			"kube-proxy's iptables and {fixed_mean_s_nftables} s with its nftables (means).",
		"While pods come and go, {disturbed_failed_requests_wangell} requests fail with Wangell, " +
			"{disturbed_failed_requests_iptables} with iptables and {disturbed_failed_requests_nftables} with " +
			"nftables.",
	},
	Quoted: []string{
		"fixed_mean_s_iptables", "fixed_mean_s_nftables", "fixed_mean_s_wangell", "short_conn_per_s_iptables",
		"short_conn_per_s_nftables", "short_conn_per_s_wangell", "short_conn_per_s_direct",
		"disturbed_failed_requests_iptables", "disturbed_failed_requests_nftables",
		"disturbed_failed_requests_wangell",
	},
}
