// SPDX-License-Identifier: Apache-2.0

package coldkube

import (
	"cmp"
	"fmt"
	"slices"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/lab/report"
)

const reportName = "knative"

const how = `One cluster, one image, one client: a host on the cluster's network that is not a node. A cold request is
a connect() by the client and an HTTP/1.1 GET on a connection of its own, timed from before connect() to the end of
the answer. Before every round of requests there has been no pod of any service for two seconds. Before every cold
request the API is asked again: the experiment fails if there is a pod of that service, even a terminating one, or if
a pod of another service is starting or ending. Before each request there is a random pause of up to one second, so
that samples do not lock onto a periodic task. Wangell is asked at its service address, and sent to sleep through the
scale subresource after its pod has been handed over to the Deployment. Knative Serving and Kourier with Envoy are
built from their Go modules and installed by their own manifests; they are asked at Kourier's node port on the node
where Kourier runs. Knative scales to zero by itself. The annotation autoscaling.knative.dev/window and the setting
scale-to-zero-grace-period are shortened so that this takes seconds (see the settings below), and once Knative has
decided to end a pod, its containers are killed instead of waiting for 30 s; neither affects a cold request. One
Knative service has default settings. The other has no service account token volume, which favours it: Wangell's pods
have none by default either. The two change places from round to round. The floor is the pod template of Wangell's own
Deployment, created through the API as a Pod and placed by the scheduler. The node's container runtime reports its
address, and from the moment the container is created the same client tries to connect every 0.5 ms, over a direct
route to the node's pods. The floor is timed from before the pod is requested. All images are on every node
beforehand. After each cold request the pod becomes Ready, and warm requests follow. The first round is not counted.`

// newReport makes the report from samples. The caller adds time, parameters and versions.
func newReport(raw Samples) *report.Report {
	cold, warm := map[string][]float64{}, map[string][]float64{}
	var lost, requests int
	for side, samples := range raw {
		for _, s := range samples {
			warm[side] = append(warm[side], s.Warm...)
			lost += len(s.WarmErrors)
			if s.Error != "" {
				lost++
				continue
			}
			cold[side] = append(cold[side], s.Done)
		}
		requests = max(requests, len(samples))
	}
	phases := phasesOf(raw)
	r := &report.Report{
		Name: reportName, Title: "Cold requests on Kubernetes: Wangell and Knative", Raw: raw, How: how, Answer: answer,
		Summary: append(summary(cold, warm),
			report.Value{Key: "requests", Value: float64(requests), Meaning: "cold requests to each"},
			report.Value{Key: "lost", Value: float64(lost), Meaning: "lost requests, cold and warm"}),
		Tables: []report.Table{table(cold, warm)},
		Figure: figure(cold, phases),
	}
	if len(phases) > 0 {
		r.Tables = append(r.Tables, report.PhaseTable(phases))
	}
	return r
}

// summary compares the times of cold and warm requests, by side.
func summary(cold, warm map[string][]float64) (s report.Summary) {
	add := func(key string, value float64, meaning string) {
		s = append(s, report.Value{Key: key, Value: value, Meaning: meaning})
	}
	for _, side := range []struct{ name, meaning string }{
		{SideWangell, "Wangell, cold request, connect() to the end of the answer"},
		{SideKnative, "Knative, default settings"},
		{SideKnativeNoToken, "Knative without service account token"},
	} {
		times := cold[side.name]
		add(side.name+"_mean_ms", report.Mean(times), side.meaning+": mean")
		add(side.name+"_stddev_ms", report.StdDev(times), side.meaning+": standard deviation")
		add(side.name+"_median_ms", report.Median(times), side.meaning+": median")
		add(side.name+"_p99_ms", report.Percentile(times, 99), side.meaning+": 99th percentile")
	}
	wangell, floor := cold[SideWangell], cold[SideFloor]
	add("ratio_mean", report.Mean(cold[SideKnative])/report.Mean(wangell), "speed-up over Knative: ratio of the means")
	add("ratio_notoken_mean", report.Mean(cold[SideKnativeNoToken])/report.Mean(wangell),
		"speed-up over Knative without token: ratio of the means")
	add("floor_mean_ms", report.Mean(floor), "floor, request for the pod to the end of the answer: mean")
	add("floor_stddev_ms", report.StdDev(floor), "floor: standard deviation")
	add("floor_median_ms", report.Median(floor), "floor: median")
	add("overhead_median_ms", report.Median(wangell)-report.Median(floor),
		"Wangell's overhead over the floor: difference of the medians")
	low, high := report.MedianDifferenceInterval(wangell, floor, 0.95)
	s = append(s, report.Value{Key: "overhead_low_ms", Value: low, Interval: true,
		Meaning: "Wangell's overhead: 95 % confidence interval"}, report.Value{Key: "overhead_high_ms", Value: high})
	for _, side := range []struct{ name, meaning string }{
		{SideWangell, "Wangell"}, {SideKnative, "Knative"}, {SideKnativeNoToken, "Knative without token"},
		{SideFloor, "the pod itself"},
	} {
		add(side.name+"_warm_median_ms", report.Median(warm[side.name]), "warm request, "+side.meaning+": median")
	}
	return s
}

// phasesOf returns the waterfall of Wangell and the floor.
func phasesOf(raw Samples) []report.Phase {
	var wakes []map[string]report.Span
	for _, s := range raw[SideWangell] {
		if s.Error == "" && s.Phases != nil {
			wakes = append(wakes, spans(s.Phases))
		}
	}
	var floors []map[string]float64
	for _, s := range raw[SideFloor] {
		ends := map[string]float64{string(lifecycle.PhaseFirstByte): s.FirstByte}
		for name, end := range s.Phases {
			ends[name] = end
		}
		floors = append(floors, ends)
	}
	var names []string
	for _, name := range lifecycle.PhaseNames() {
		names = append(names, string(name))
	}
	return report.Phases(names, wakes, floors)
}

// spans computes how long each phase took, given when each ended: since the end of the phase before it.
func spans(ends map[string]float64) map[string]report.Span {
	type phase struct {
		name string
		end  float64
	}
	var order []phase
	for name, end := range ends {
		order = append(order, phase{name, end})
	}
	slices.SortFunc(order, func(a, b phase) int {
		return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.name, b.name))
	})
	out, before := map[string]report.Span{}, 0.0
	for _, p := range order {
		out[p.name], before = report.Span{End: p.end, Took: p.end - before}, p.end
	}
	return out
}

func table(cold, warm map[string][]float64) report.Table {
	t := report.Table{Title: "Cold and warm requests", Header: []string{"", "cold: n", "median (ms)", "mean (ms)",
		"SD (ms)", "SD (% of mean)", "min (ms)", "p99 (ms)", "max (ms)", "warm: n", "median (ms)"}}
	for _, side := range AllSides {
		s := cold[side]
		if len(s) == 0 {
			continue
		}
		row := []string{sideTitle[side], fmt.Sprint(len(s))}
		for _, v := range []float64{report.Median(s), report.Mean(s), report.StdDev(s),
			100 * report.StdDev(s) / report.Mean(s), slices.Min(s), report.Percentile(s, 99), slices.Max(s)} {
			row = append(row, fmt.Sprintf("%.1f", v))
		}
		t.Rows = append(t.Rows, append(row, fmt.Sprint(len(warm[side])), report.Decimal(report.Median(warm[side]))))
	}
	return t
}

// answer is what the report says first.
var answer = report.Answer{
	Sentences: []string{
		"A cold request takes {wangell_median_ms} with Wangell and {knative_median_ms} with Knative " +
			"(medians); by the means, Knative takes {ratio_mean} times as long.",
		"Wangell differs from a pod made by hand by {overhead_median_ms} (95 % interval: {overhead_low_ms} to " +
			"{overhead_high_ms}), and {lost} requests were lost.",
	},
	Quoted: []string{
		"wangell_median_ms", "wangell_p99_ms", "knative_median_ms", "knative_p99_ms", "knative_notoken_median_ms",
		"ratio_mean", "floor_median_ms", "overhead_median_ms", "overhead_low_ms", "lost",
	},
}
