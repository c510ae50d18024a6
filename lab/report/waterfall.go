// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"

	"gonum.org/v1/plot"
)

// Span is a phase of one wake, in milliseconds since the first SYN.
type Span struct{ End, Took float64 }

// Phase is a phase of the waterfall: medians over all samples, in milliseconds. A phase that one of the two sides does
// not have is negative there.
type Phase struct {
	Name string
	// WakeEnd and WakeTook belong to cold requests.
	WakeEnd, WakeTook float64
	// FloorBegin and FloorEnd belong to the floor.
	FloorBegin, FloorEnd float64
}

// end orders the phases.
func (p Phase) end() float64 {
	if p.WakeEnd >= 0 {
		return p.WakeEnd
	}
	return p.FloorEnd
}

// Phases returns the phases of cold requests and of the floor in the order of their ends; phases that end at the same
// time are in the order of names. Wakes have the spans of each wake, floors the end of each phase of each floor sample,
// both by the phase's name.
func Phases(names []string, wakes []map[string]Span, floors []map[string]float64) []Phase {
	var phases []Phase
	for _, name := range names {
		p := Phase{Name: name, WakeEnd: -1, WakeTook: -1, FloorEnd: -1, FloorBegin: -1}
		ends := Collect(wakes, func(w map[string]Span) (float64, bool) { s, ok := w[name]; return s.End, ok })
		took := Collect(wakes, func(w map[string]Span) (float64, bool) { s, ok := w[name]; return s.Took, ok })
		if len(ends) > 0 {
			p.WakeEnd, p.WakeTook = Median(ends), Median(took)
		}
		floor := Collect(floors, func(f map[string]float64) (float64, bool) { end, ok := f[name]; return end, ok })
		if len(floor) > 0 {
			p.FloorEnd = Median(floor)
		}
		if p.WakeEnd > 0 || p.FloorEnd >= 0 { // the first phase, the SYN itself, ends at 0
			phases = append(phases, p)
		}
	}
	slices.SortStableFunc(phases, func(a, b Phase) int { return cmp.Compare(a.end(), b.end()) })
	beginFloor(phases)
	return phases
}

// beginFloor lets each phase of the floor begin where the one before it ended: their order in time is their own.
func beginFloor(phases []Phase) {
	var order []*Phase
	for i := range phases {
		if phases[i].FloorEnd >= 0 {
			order = append(order, &phases[i])
		}
	}
	slices.SortStableFunc(order, func(a, b *Phase) int { return cmp.Compare(a.FloorEnd, b.FloorEnd) })
	begin := 0.0
	for _, p := range order {
		p.FloorBegin, begin = begin, p.FloorEnd
	}
}

// PhaseTable shows the waterfall as numbers.
func PhaseTable(phases []Phase) Table {
	t := Table{
		Title:  "Where the time goes (medians)",
		Header: []string{"phase", "cold: ends at (ms)", "took (ms)", "floor: ends at (ms)", "took (ms)"},
	}
	cell := func(v float64) string {
		if v < 0 {
			return ""
		}
		return Decimal(v)
	}
	for _, p := range phases {
		row := []string{p.Name, cell(p.WakeEnd), cell(p.WakeTook), cell(p.FloorEnd), ""}
		if p.FloorEnd >= 0 {
			row[4] = cell(p.FloorEnd - p.FloorBegin)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// WaterfallPlot draws the phases of cold requests in blue and the phases of the floor in orange.
func WaterfallPlot(phases []Phase, title string) *plot.Plot {
	p := NewPlot(title, "time since the first SYN, or since the start (ms)")
	last := 1.0
	names := make([]string, len(phases))
	for i, phase := range phases {
		last = max(last, phase.WakeEnd, phase.FloorEnd)
		names[i] = phase.Name
	}
	XFromZero(p, 1.1*last)
	NamedRows(p, names)
	for i, phase := range phases {
		y := RowAt(i, len(phases))
		if phase.WakeEnd >= 0 {
			p.Add(Bar{From: phase.WakeEnd - phase.WakeTook, To: phase.WakeEnd, Y: y + 0.2, Thickness: 0.34, Fill: Blue,
				Text: shortTime(phase.WakeTook)})
		}
		if phase.FloorEnd >= 0 {
			p.Add(Bar{From: phase.FloorBegin, To: phase.FloorEnd, Y: y - 0.2, Thickness: 0.34, Fill: Orange,
				Text: shortTime(phase.FloorEnd - phase.FloorBegin)})
		}
	}
	return p
}

// shortTime formats milliseconds, or microseconds if there are less than 0.1 ms.
func shortTime(ms float64) string {
	if ms < 0.1 {
		return fmt.Sprintf("%.0f µs", ms*1000)
	}
	return fmt.Sprintf("%.1f ms", ms)
}
