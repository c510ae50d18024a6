// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/internal/lifecycle"
)

// coldReport makes the report out of samples; the caller adds parameters and versions.
func coldReport(raw ColdRaw, retransmits uint64) *Report {
	var cold, connected, floor []float64
	lost := 0
	for _, s := range raw.Cold {
		if s.Error != "" {
			lost++
			continue
		}
		cold, connected = append(cold, s.FirstByte), append(connected, s.Connected)
	}
	for _, s := range raw.Floor {
		floor = append(floor, s.FirstByte)
	}
	low, high := MedianDifferenceInterval(cold, floor, 0.95)
	phases := coldPhases(raw)
	return &Report{
		Name: "cold", Title: "Cold requests: overhead over the floor", Time: time.Now(), Raw: raw,
		Summary: Summary{
			{"median_ms", Median(cold), "cold request, connect() to first byte: median"},
			{"mean_ms", Mean(cold), "mean"},
			{"stddev_ms", StdDev(cold), "standard deviation"},
			{"p99_ms", Percentile(cold, 99), "99th percentile"},
			{"connected_median_ms", Median(connected), "until the connection stood: median"},
			{"floor_median_ms", Median(floor), "floor, start to first byte: median"},
			{"floor_mean_ms", Mean(floor), "mean"},
			{"floor_stddev_ms", StdDev(floor), "standard deviation"},
			{"overhead_median_ms", Median(cold) - Median(floor), "overhead: difference of the medians"},
			{"overhead_low_ms", low, "its 95 % confidence interval, from"},
			{"overhead_high_ms", high, "to"},
			{"requests", float64(len(raw.Cold)), "cold requests"},
			{"lost", float64(lost), "lost requests"},
			{"syn_retransmits", float64(retransmits), "SYNs that the client sent again"},
		},
		How: "A node and a client are network namespaces joined by a bridge. An instance of Wangell runs on the node with a containerd of its own; " +
			"its only service is asleep: before every request the instance says that there is no replica, and containerd that there is no task. " +
			"A cold request is connect() by the client to the service address and an HTTP GET, timed from before connect() to the first byte of the answer. " +
			"In turn with it, the floor is measured on the node: a process of its own starts the same container with the same specification through " +
			"the same runtime code and the same containerd, and tries to connect every 0.5 ms from the moment at which the container is created (before that " +
			"no process could listen, and attempts would only slow the start down); it is timed from before the start to the first byte of the answer. So the floor " +
			"has all that the start of the container costs, and on average 0.25 ms of waiting for the next attempt, but no gate, no daemon and no wire, and no link " +
			"between client and pod. Before each sample there is a random pause, so that " +
			"samples do not lock onto a tick. The first sample of each kind is not counted. The waterfall has the median of each phase's end, as the instance " +
			"(from the first SYN) and the floor process (from the start) tell them.",
		Tables: []Table{phaseTable(phases)},
		Figure: coldFigure(cold, floor, phases),
	}
}

// phase is a phase in the reports: medians over all samples, in milliseconds. Negative: does not occur.
type phase struct {
	name                 string
	coldEnd, coldTook    float64
	floorEnd, floorBegin float64
}

// end is where a phase stands among the others.
func (p phase) end() float64 {
	if p.coldEnd >= 0 {
		return p.coldEnd
	}
	return p.floorEnd
}

// coldPhases returns the phases in order of their ends.
func coldPhases(raw ColdRaw) []phase {
	ends, took := map[string][]float64{}, map[string][]float64{}
	for _, s := range raw.Cold {
		if s.Error != "" || s.Wake == nil {
			continue
		}
		for _, p := range s.Wake.Phases {
			ends[string(p.Name)] = append(ends[string(p.Name)], ms(p.At))
			took[string(p.Name)] = append(took[string(p.Name)], ms(p.Took))
		}
	}
	floorEnds := map[string][]float64{}
	for _, s := range raw.Floor {
		for name, at := range s.Phases {
			floorEnds[name] = append(floorEnds[name], at)
		}
		floorEnds[string(lifecycle.PhaseFirstByte)] = append(floorEnds[string(lifecycle.PhaseFirstByte)], s.FirstByte)
	}
	var phases []phase
	for _, name := range lifecycle.PhaseNames() {
		p := phase{name: string(name), coldEnd: -1, coldTook: -1, floorEnd: -1, floorBegin: -1}
		if of := ends[p.name]; len(of) > 0 {
			p.coldEnd, p.coldTook = Median(of), Median(took[p.name])
		}
		if of := floorEnds[p.name]; len(of) > 0 {
			p.floorEnd = Median(of)
		}
		if p.coldEnd > 0 || p.floorEnd >= 0 { // the first phase, the SYN itself, ends at 0
			phases = append(phases, p)
		}
	}
	slices.SortStableFunc(phases, func(a, b phase) int { return cmp.Compare(a.end(), b.end()) })
	// The floor's phases have their own order in time.
	order := make([]*phase, 0, len(phases))
	for i := range phases {
		if phases[i].floorEnd >= 0 {
			order = append(order, &phases[i])
		}
	}
	slices.SortStableFunc(order, func(a, b *phase) int { return cmp.Compare(a.floorEnd, b.floorEnd) })
	begin := 0.0
	for _, p := range order {
		p.floorBegin, begin = begin, p.floorEnd
	}
	return phases
}

func phaseTable(phases []phase) Table {
	t := Table{Title: "Where the time goes (medians)", Header: []string{"phase", "cold: ends at (ms)", "took (ms)", "floor: ends at (ms)", "took (ms)"}}
	cell := func(v float64) string {
		if v < 0 {
			return ""
		}
		return fmt.Sprintf("%.2f", v)
	}
	for _, p := range phases {
		row := []string{p.name, cell(p.coldEnd), cell(p.coldTook), cell(p.floorEnd), ""}
		if p.floorEnd >= 0 {
			row[4] = cell(p.floorEnd - p.floorBegin)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// coldFigure draws all samples above the waterfall.
func coldFigure(cold, floor []float64, phases []phase) Figure {
	return func(c draw.Canvas) error {
		samples := newPlot(fmt.Sprintf("First byte of a cold request: %d samples of each kind, overhead %.1f ms at the median",
			len(cold), Median(cold)-Median(floor)), "time since connect() or start (ms)")
		milliseconds(samples, 1.04*slices.Max(slices.Concat([]float64{1}, cold, floor)))
		rows(samples, []string{"cold request", "floor"})
		samples.Add(strip{samples: cold, y: rowAt(0, 2), color: blue}, strip{samples: floor, y: rowAt(1, 2), color: orange})

		// The waterfall has an axis of its own: one slow sample above shall not make it too small to read.
		return stack(c, 0.35, samples, waterfallPlot(phases, "Where the time goes: medians of the phases, cold request blue and floor orange"))
	}
}

// waterfallPlot draws the phases of cold requests and of the floor.
func waterfallPlot(phases []phase, title string) *plot.Plot {
	waterfall := newPlot(title, "time since the SYN was seen or start (ms)")
	last := 1.0
	for _, p := range phases {
		last = max(last, p.coldEnd, p.floorEnd)
	}
	milliseconds(waterfall, 1.1*last)
	names := make([]string, len(phases))
	for i, p := range phases {
		names[i] = p.name
	}
	rows(waterfall, names)
	for i, p := range phases {
		y := rowAt(i, len(phases))
		if p.coldEnd >= 0 {
			waterfall.Add(bar{from: p.coldEnd - p.coldTook, to: p.coldEnd, y: y + 0.2, thickness: 0.34, fill: blue, text: took(p.coldTook)})
		}
		if p.floorEnd >= 0 {
			waterfall.Add(bar{from: p.floorBegin, to: p.floorEnd, y: y - 0.2, thickness: 0.34, fill: orange, text: took(p.floorEnd - p.floorBegin)})
		}
	}
	return waterfall
}

// stack draws a plot of samples above a waterfall, with their vertical axes in one line. Share is the part of the height
// that the samples have.
func stack(c draw.Canvas, share float64, samples, waterfall *plot.Plot) error {
	height := c.Max.Y - c.Min.Y
	top, bottom := draw.Crop(c, 0, 0, vg.Length(1-share+0.01)*height, 0), draw.Crop(c, 0, 0, 0, -vg.Length(share+0.02)*height)
	aligned := plot.Align([][]*plot.Plot{{samples}, {waterfall}}, draw.Tiles{Rows: 2, Cols: 1}, c)
	top.Min.X, top.Max.X, bottom.Min.X, bottom.Max.X = aligned[0][0].Min.X, aligned[0][0].Max.X, aligned[1][0].Min.X, aligned[1][0].Max.X
	samples.Draw(top)
	waterfall.Draw(bottom)
	return nil
}

// took writes a duration of a phase.
func took(v float64) string {
	if v < 0.1 {
		return fmt.Sprintf("%.0f µs", v*1000)
	}
	return fmt.Sprintf("%.1f ms", v)
}
