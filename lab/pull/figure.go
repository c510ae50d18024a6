// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/internal/images/pullstat"
	"wangell.loutres.me/lab/report"
)

// figure draws the medians of the pulls: for each image a bar for the defaults and one for the recommended settings,
// with all samples, above the wakes.
func figure(raw Samples) report.Figure {
	return func(c draw.Canvas) error {
		pulls := pullPlot(raw)
		if len(raw.Wakes) == 0 {
			pulls.Draw(c)
			return nil
		}
		report.Stack(c, 0.6, pulls, wakePlot(raw))
		return nil
	}
}

// styles are how the settings are drawn: their place in a row, and their colours.
var styles = []struct {
	settings string
	at       float64
	color    color.RGBA
}{{Defaults, 0.2, report.Blue}, {Tuned, -0.2, report.Orange}}

func pullPlot(raw Samples) *plot.Plot {
	all := variants(0)
	var names []string
	longest := 1.0
	for _, v := range all {
		names = append(names, words(v.name))
	}
	for _, p := range raw.Pulls {
		if !p.Other {
			longest = max(longest, p.Pull)
		}
	}
	p := report.NewPlot("Pull by the way the layers are stored: containerd's defaults blue, recommended settings orange",
		"seconds (medians, and every sample as a dot)")
	report.XFromZero(p, 1.12*longest)
	report.NamedRows(p, names)
	for i, v := range all {
		for _, s := range styles {
			times := raw.seconds(v.name, s.settings, false, pullSeconds)
			if len(times) == 0 {
				continue
			}
			y := report.RowAt(i, len(all)) + s.at
			p.Add(report.Bar{To: report.Median(times), Y: y, Thickness: 0.34, Fill: report.Translucent(s.color, 0.75)},
				report.Dots{Samples: times, Y: y},
				label{x: report.Percentile(times, 100), y: y, text: fmt.Sprintf("%.1f s", report.Median(times))})
		}
	}
	return p
}

// label is text to the right of a point.
type label struct {
	x, y float64
	text string
}

// Plot implements plot.Plotter.
func (l label) Plot(c draw.Canvas, p *plot.Plot) {
	report.Bar{From: l.x, To: l.x, Y: l.y, Fill: color.Transparent, Text: l.text}.Plot(c, p)
}

func wakePlot(raw Samples) *plot.Plot {
	kinds := []string{Stock, Prefetch, Lazy, Warm, NoPeers, Peers}
	longest := 1.0
	for _, w := range raw.Wakes {
		longest = max(longest, w.FirstByte)
	}
	p := report.NewPlot("First byte of a request to a sleeping service", "seconds (medians, and every sample as a dot)")
	report.XFromZero(p, 1.12*longest)
	report.NamedRows(p, []string{"first wake, stock", "first wake, prefetched", "first wake, lazy", "later wake",
		"first in a cluster, stock", "first in a cluster, peers"})
	for i, kind := range kinds {
		times := raw.wakes(kind)
		if len(times) == 0 {
			continue
		}
		y := report.RowAt(i, len(kinds))
		p.Add(report.Bar{To: report.Median(times), Y: y, Thickness: 0.5, Fill: report.Translucent(report.Green, 0.75)},
			report.Dots{Samples: times, Y: y},
			label{x: report.Percentile(times, 100), y: y, text: fmt.Sprintf("%.2f s", report.Median(times))})
	}
	return p
}

// colours of the phases in the chart.
var colours = map[pullstat.Phase]color.RGBA{
	pullstat.Fetch: report.Blue, pullstat.Prepare: report.Grey,
	pullstat.Decompress: {R: 0xe6, G: 0x9f, B: 0x00, A: 0xff}, pullstat.Hash: report.Purple,
	pullstat.Apply: report.Green, pullstat.Fsync: report.Orange,
}

// phasesFigure draws the first and the last of the explained pulls, the slowest and the quickest, with the same axis.
func phasesFigure(raw []Explained) report.Figure {
	return func(c draw.Canvas) error {
		if len(raw) == 0 {
			return nil
		}
		shown := []Explained{raw[0]}
		if len(raw) > 1 {
			shown = append(shown, raw[len(raw)-1])
		}
		longest := 0.0
		for _, e := range shown {
			longest = max(longest, e.Report.Pull)
		}
		var panels []*plot.Plot
		for _, e := range shown {
			panels = append(panels, gantt(e, longest))
		}
		var names []string
		for _, phase := range pullstat.LayerPhases {
			if phase != pullstat.Wait { // is not drawn
				names = append(names, string(phase))
			}
		}
		report.Legend(panels[len(panels)-1], names, func(name string) color.RGBA { return colours[pullstat.Phase(name)] })
		report.DrawPanels(c, panels...)
		return nil
	}
}

// gantt draws a row for each layer.
func gantt(e Explained, longest float64) *plot.Plot {
	r := e.Report
	p := report.NewPlot(fmt.Sprintf("%s, %s: %.1f s, %d layers", words(e.Image), e.Settings, r.Pull, len(r.Layers)),
		"seconds since the start of the pull")
	report.XFromZero(p, longest)
	p.Y.Min, p.Y.Max = -0.6, float64(len(r.Layers))-0.4
	p.Y.Tick.Marker = plot.ConstantTicks([]plot.Tick{
		{Value: report.RowAt(0, len(r.Layers)), Label: "layer 1"},
		{Value: 0, Label: fmt.Sprintf("layer %d", len(r.Layers))},
	})
	for i, l := range r.Layers {
		for _, s := range l.Spans {
			if s.Phase != pullstat.Wait {
				p.Add(report.Bar{From: s.Begin, To: s.End, Y: report.RowAt(i, len(r.Layers)), Thickness: 0.85,
					Fill: colours[s.Phase]})
			}
		}
	}
	return p
}
