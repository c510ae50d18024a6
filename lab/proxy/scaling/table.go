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
		Figure: fixedFigure(p, raw.Fixed),
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
