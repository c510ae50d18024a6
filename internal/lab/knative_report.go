// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"image/color"
	"slices"
	"time"

	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/internal/lifecycle"
)

// sideTitle names the sides for people.
var sideTitle = map[string]string{SideWangell: "Wangell", SideFloor: "floor", SideKnative: "Knative", SideKnativeNoToken: "Knative, no token"}

// sideColor are the colours of the sides, as in the waterfall.
var sideColor = map[string]color.RGBA{SideWangell: blue, SideFloor: orange, SideKnative: purple, SideKnativeNoToken: green}

// knativeReport makes the report out of samples; the caller adds parameters and versions.
func knativeReport(raw KnativeRaw) *Report {
	cold, warm := map[string][]float64{}, map[string][]float64{}
	var lost, warmLost, requests int
	for side, samples := range raw {
		for _, s := range samples {
			warm[side] = append(warm[side], s.Warm...)
			warmLost += len(s.WarmErrors)
			if s.Error != "" {
				lost++
				continue
			}
			cold[side] = append(cold[side], s.Done)
		}
		requests = max(requests, len(samples))
	}
	low, high := MedianDifferenceInterval(cold[SideWangell], cold[SideFloor], 0.95)
	phases := coldPhases(phasesOf(raw))
	wangell, knative, notoken, floor := cold[SideWangell], cold[SideKnative], cold[SideKnativeNoToken], cold[SideFloor]
	r := &Report{
		Name: "knative", Title: "Cold requests on Kubernetes: Wangell and Knative", Time: time.Now(), Raw: raw,
		Summary: Summary{
			{"wangell_mean_ms", Mean(wangell), "Wangell, cold request, connect() to the whole answer: mean"},
			{"wangell_stddev_ms", StdDev(wangell), "standard deviation"},
			{"wangell_median_ms", Median(wangell), "median"},
			{"wangell_p99_ms", Percentile(wangell, 99), "99th percentile"},
			{"knative_mean_ms", Mean(knative), "Knative as it is by default: mean"},
			{"knative_stddev_ms", StdDev(knative), "standard deviation"},
			{"knative_median_ms", Median(knative), "median"},
			{"knative_p99_ms", Percentile(knative, 99), "99th percentile"},
			{"knative_notoken_mean_ms", Mean(notoken), "Knative, its pods without service account token: mean"},
			{"knative_notoken_stddev_ms", StdDev(notoken), "standard deviation"},
			{"knative_notoken_median_ms", Median(notoken), "median"},
			{"knative_notoken_p99_ms", Percentile(notoken, 99), "99th percentile"},
			{"ratio_mean", Mean(knative) / Mean(wangell), "Knative's mean by Wangell's"},
			{"ratio_notoken_mean", Mean(notoken) / Mean(wangell), "the same without token"},
			{"floor_mean_ms", Mean(floor), "floor, pod asked for to the whole answer: mean"},
			{"floor_stddev_ms", StdDev(floor), "standard deviation"},
			{"floor_median_ms", Median(floor), "median"},
			{"overhead_median_ms", Median(wangell) - Median(floor), "Wangell's overhead: difference of the medians"},
			{"overhead_low_ms", low, "its 95 % confidence interval, from"},
			{"overhead_high_ms", high, "to"},
			{"wangell_warm_median_ms", Median(warm[SideWangell]), "warm requests: Wangell, median"},
			{"knative_warm_median_ms", Median(warm[SideKnative]), "Knative, median"},
			{"knative_notoken_warm_median_ms", Median(warm[SideKnativeNoToken]), "Knative without token, median"},
			{"floor_warm_median_ms", Median(warm[SideFloor]), "the pod itself, median"},
			{"requests", float64(requests), "cold requests to each"},
			{"lost", float64(lost + warmLost), "lost requests, cold and warm"},
		},
		How: "One cluster, one image, one client: a host on the cluster's network that is no node. A cold request is connect() by the client and an HTTP/1.1 GET on a " +
			"connection of its own, timed from before connect() to the end of the answer. Before every round of requests no pod of any service has existed for two seconds, and " +
			"before every cold request the API is asked again: a pod of that service, be it one that is terminating, or a pod of another one that is starting or " +
			"ending fails the experiment. Before each request there is a random pause of up to one second, so that samples do not lock onto a tick. " +
			"Wangell is asked at its service address, and sent to sleep through the scale subresource, after its pod was handed over to the Deployment. Knative Serving and Kourier with Envoy are built from their Go modules and " +
			"installed by their own manifests; they are asked at Kourier's node port on the node where Kourier runs. Knative scales to zero by itself; the annotation autoscaling.knative.dev/window and " +
			"scale-to-zero-grace-period are shortened so that this takes seconds (the settings are below), and once Knative has decided to end a pod, its containers are killed rather than left to wait for 30 s: " +
			"neither is in the way of a cold request. One Knative service is as it is by default, the other has no service account token volume, which favours it, as Wangell's pods have " +
			"none by default either; the two change places from round to round. The floor is the pod template of Wangell's own Deployment, created through " +
			"the API as a Pod and scheduled by the scheduler: the node's container runtime tells its address, and from the moment at which the container is created the same client tries to " +
			"connect every 0.5 ms, over a route of its own to the pods of the node; it is timed from before the pod is asked for. All images are on every node before. " +
			"After each cold request the pod becomes Ready, and warm requests follow. The first round is not counted.",
		Tables: []Table{knativeTable(cold, warm)},
		Figure: knativeFigure(cold, phases),
	}
	if len(phases) > 0 {
		r.Tables = append(r.Tables, phaseTable(phases))
	}
	return r
}

// phasesOf gives the phases of Wangell and of the floor the form that the experiment Cold has.
func phasesOf(raw KnativeRaw) (c ColdRaw) {
	for _, s := range raw[SideWangell] {
		if s.Error != "" || s.Phases == nil {
			continue
		}
		w := &lifecycle.Waterfall{}
		for name, at := range s.Phases {
			w.Phases = append(w.Phases, lifecycle.Phase{Name: lifecycle.PhaseName(name), At: duration(at)})
		}
		slices.SortStableFunc(w.Phases, func(a, b lifecycle.Phase) int { return int(a.At - b.At) })
		before := time.Duration(0)
		for i := range w.Phases {
			w.Phases[i].Took, before = w.Phases[i].At-before, w.Phases[i].At
		}
		c.Cold = append(c.Cold, ColdSample{FirstByte: s.FirstByte, Wake: w})
	}
	for _, s := range raw[SideFloor] {
		c.Floor = append(c.Floor, FloorSample{Phases: s.Phases, FirstByte: s.FirstByte})
	}
	return c
}

// duration is the inverse of ms.
func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

func knativeTable(cold, warm map[string][]float64) Table {
	t := Table{Title: "Cold requests, and warm ones", Header: []string{"", "cold: n", "median (ms)", "mean (ms)", "SD (ms)", "SD (% of mean)", "least (ms)", "p99 (ms)", "most (ms)", "warm: n", "median (ms)"}}
	f := func(v float64) string { return fmt.Sprintf("%.1f", v) }
	for _, side := range KnativeSides {
		s := cold[side]
		if len(s) == 0 {
			continue
		}
		t.Rows = append(t.Rows, []string{sideTitle[side], fmt.Sprint(len(s)), f(Median(s)), f(Mean(s)), f(StdDev(s)), f(100 * StdDev(s) / Mean(s)),
			f(slices.Min(s)), f(Percentile(s, 99)), f(slices.Max(s)), fmt.Sprint(len(warm[side])), fmt.Sprintf("%.2f", Median(warm[side]))})
	}
	return t
}

// knativeFigure draws all samples above the waterfall of Wangell and the floor, if there is one.
func knativeFigure(cold map[string][]float64, phases []phase) Figure {
	return func(c draw.Canvas) error {
		title := "Cold requests on Kubernetes"
		if w, k := Mean(cold[SideWangell]), Mean(cold[SideKnative]); w > 0 && k > 0 {
			title += fmt.Sprintf(": mean %.0f ms with Wangell, %.0f ms with Knative", w, k)
		}
		p := newPlot(title, "time to the whole answer (ms)")
		var shown []string
		greatest := 1.0
		for _, side := range KnativeSides {
			if len(cold[side]) > 0 {
				greatest, shown = max(greatest, slices.Max(cold[side])), append(shown, side)
			}
		}
		milliseconds(p, 1.04*greatest)
		names := make([]string, len(shown))
		for i, side := range shown {
			names[i] = sideTitle[side]
			p.Add(strip{samples: cold[side], y: rowAt(i, len(shown)), color: sideColor[side]})
		}
		rows(p, names)
		if len(phases) == 0 {
			p.Draw(c)
			return nil
		}
		return stack(c, 0.48, p, waterfallPlot(phases, "Where the time goes: medians of the phases, Wangell blue and floor orange"))
	}
}
