// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/lab/proxy"
	"wangell.loutres.me/lab/report"
)

// figure draws the share of each pod, with a row for each pattern and mode.
func figure(modes []string, samples []Sample) report.Figure {
	return func(c draw.Canvas) error {
		p := report.NewPlot("Share of each pod in the requests; the lines are even shares", "%")
		names := make([]string, len(Patterns))
		for i, pattern := range Patterns {
			names[i] = pattern.Name
		}
		report.NamedRows(p, names)
		report.XFromZero(p, 100)
		thick := 0.68 / float64(len(modes))
		for _, s := range samples {
			if s.Work > 0 {
				continue
			}
			i := slices.IndexFunc(Patterns, func(p Pattern) bool { return p.Key == s.Pattern })
			j := slices.Index(modes, s.Mode)
			addShares(p, s, report.RowAt(i, len(names))+1.15*thick*(float64(len(modes)-1)/2-float64(j)), thick)
		}
		for k := 1; k < replicas; k++ {
			p.Add(dashedLine(100 * float64(k) / replicas))
		}
		report.Legend(p, modes, proxy.ModeColor)
		p.X.Max = 122                        // room for text
		p.Y.Max += 0.2 * float64(len(modes)) // and for the legend
		p.Draw(c)
		return nil
	}
}

// addShares draws the shares of the pods in a sample, in descending order.
func addShares(p *plot.Plot, s Sample, y, thick float64) {
	total, at := max(1, s.perSecond()*s.Seconds), 0.0
	for k, n := range descending(s.Requests) {
		share := 100 * float64(n) / total
		if share > 0 {
			// Neighbours differ in opacity.
			fill := report.Translucent(proxy.ModeColor(s.Mode), []float64{1, 0.62}[k%2])
			p.Add(report.Bar{From: at, To: at + share, Y: y, Thickness: thick, Fill: fill})
		}
		at += share
	}
	text := fmt.Sprintf("%.0f per second", s.perSecond())
	p.Add(report.Bar{From: at, To: at, Y: y, Fill: color.Transparent, Text: text})
}

// dashedLine is a vertical dashed line.
type dashedLine float64

// Plot implements plot.Plotter.
func (d dashedLine) Plot(c draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	style := draw.LineStyle{Color: report.Ink, Width: 0.8, Dashes: []vg.Length{3, 3}}
	c.StrokeLine2(style, x(float64(d)), c.Min.Y, x(float64(d)), c.Max.Y)
}
