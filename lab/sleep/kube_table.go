// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"fmt"

	"wangell.loutres.me/lab/report"
)

func addKube(r *report.Report, k *Kube) {
	if k == nil {
		return
	}
	t := report.Table{Title: "On Kubernetes (ms, MB), the hello image", Header: []string{"of", "state", "connect p50",
		"first byte p50", "p99", "memory", "samples"}}
	medians := map[string]float64{}
	add := func(who, prefix, state string, answers []Answer) {
		s := Samples{Answers: answers}
		times := of(s, "hello", state, firstByte)
		if len(times) == 0 {
			return
		}
		p50, p99 := report.Median(times), report.Percentile(times, 99)
		medians[prefix+state] = p50
		r.Summary = append(r.Summary,
			report.Value{Key: prefix + state + "_p50_ms", Value: p50, Meaning: who + ", " + state + ": first byte, median"},
			report.Value{Key: prefix + state + "_p99_ms", Value: p99, Meaning: who + ", " + state +
				": first byte, 99th percentile"})
		t.Rows = append(t.Rows, []string{who, state, report.Decimal(report.Median(of(s, "hello", state, connect))),
			report.Decimal(p50), report.Decimal(p99), report.Decimal(report.Median(of(s, "hello", state, resident))),
			fmt.Sprint(len(times))})
	}
	for _, state := range kubeStates {
		add("Kubernetes", "k8s_", state, k.Answers)
	}
	for _, state := range []string{stateWarm, stateCold} {
		add("Knative", "knative_", state, k.Knative)
	}
	if cold, frozen := medians["knative_"+stateCold], medians["k8s_"+stateFrozen]; cold > 0 && frozen > 0 {
		r.Summary = append(r.Summary, report.Value{Key: "knative_cold_over_k8s_frozen", Value: cold / frozen,
			Meaning: "Knative's cold median over that of a frozen pod"})
	}
	if k.RequestsAwake > 0 {
		r.Summary = append(r.Summary, report.Value{Key: "k8s_requests_freed_pct",
			Value:   100 * (1 - k.RequestsFrozen/k.RequestsAwake),
			Meaning: "of a pod's requests for processors, given back while it is frozen (%)"})
	}
	r.Tables = append(r.Tables, t)
}
