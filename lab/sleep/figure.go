// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/lab/report"
)

func stateColor(state string) color.RGBA {
	return map[string]color.RGBA{stateWarm: report.Orange, stateFrozen: report.Blue, stateReclaimed: report.Green,
		statePrepared: report.Purple, stateCold: report.Grey}[state]
}

// least is the smallest value on the axes, which are logarithmic: nothing is drawn there.
const least = 0.1

// figure draws the latency of each app in each state against the memory that it keeps.
func figure(s Samples) report.Figure {
	return func(c draw.Canvas) error {
		p := report.NewPlot("First byte (median) against memory kept, by state", "resident memory (MB)")
		p.Y.Label.Text = "milliseconds"
		p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
		p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = least, 1000, least, 1000
		for _, app := range measured(s) {
			var line plotter.XYs
			for _, state := range states {
				times := of(s, app, state, firstByte)
				if len(times) == 0 {
					continue
				}
				kept := report.Median(of(s, app, state, resident))
				if state == stateCold {
					kept = 0
				}
				at := plotter.XY{X: math.Max(least, kept), Y: math.Max(least, report.Median(times))}
				p.X.Max, p.Y.Max = math.Max(p.X.Max, at.X*2), math.Max(p.Y.Max, at.Y*2)
				line = append(line, at)
				dot, err := plotter.NewScatter(plotter.XYs{at})
				if err != nil {
					return err
				}
				dot.GlyphStyle = draw.GlyphStyle{Color: stateColor(state), Radius: vg.Points(4), Shape: draw.CircleGlyph{}}
				p.Add(dot)
			}
			if len(line) == 0 {
				continue
			}
			path, err := plotter.NewLine(line)
			if err != nil {
				return err
			}
			path.Color = report.Translucent(report.Grey, 0.5)
			label, err := plotter.NewLabels(plotter.XYLabels{XYs: line[:1], Labels: []string{" " + app}})
			if err != nil {
				return err
			}
			label.TextStyle[0].Font = p.X.Tick.Label.Font
			p.Add(path, label)
		}
		report.Legend(p, states, stateColor)
		p.Draw(c)
		return nil
	}
}
