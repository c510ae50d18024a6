// SPDX-License-Identifier: Apache-2.0

package prewake

import (
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/lab/report"
)

// figure draws memory against cold uses, as figure 15 of the paper does, and against all cold wakes: the nearer to the
// corner, the better.
func figure(s Samples) report.Figure {
	return func(c draw.Canvas) error {
		list := outcomes(s)
		report.DrawPanels(c,
			panel(list, "Labels: minutes of the fixed time", "cold uses, third quartile of services (%)",
				func(o outcome) float64 { return o.quartile }),
			panel(list, "", "cold wakes of all services (thousands)",
				func(o outcome) float64 { return float64(o.cold) / 1000 }))
		return nil
	}
}

// panel draws memory against another value.
func panel(list []outcome, title, label string, value func(outcome) float64) *plot.Plot {
	p := report.NewPlot(title, label)
	most, right := 0.0, 0.0
	for _, o := range list {
		most, right = max(most, o.memory), max(right, value(o))
	}
	report.XFromZero(p, right)
	report.YFromZero(p, "idle memory, of fixed 10 min (%)", most*1.15)
	colors := map[string]color.RGBA{"fixed time": report.Grey, "predict, else a fixed time": report.Blue}
	for _, predict := range []bool{false, true} {
		l := curve{color: report.Grey, below: predict}
		if predict {
			l.color = report.Blue
		}
		for _, o := range list {
			if o.Predict == predict {
				l.points = append(l.points, plotter.XY{X: value(o), Y: o.memory})
				l.texts = append(l.texts, strconv.Itoa(o.Minutes))
			}
		}
		p.Add(l)
	}
	report.Legend(p, []string{"fixed time", "predict, else a fixed time"},
		func(name string) color.RGBA { return colors[name] })
	return p
}

// curve is a line through points with labels above or below them.
type curve struct {
	points plotter.XYs
	texts  []string
	color  color.RGBA
	below  bool
}

// Plot implements plot.Plotter.
func (l curve) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	line := make([]vg.Point, len(l.points))
	for i, q := range l.points {
		line[i] = vg.Point{X: x(q.X), Y: y(q.Y)}
	}
	c.StrokeLines(draw.LineStyle{Color: report.Translucent(l.color, 0.5), Width: 1.5}, line)
	label := p.X.Tick.Label
	label.XAlign, label.YAlign = draw.XCenter, draw.YBottom
	away := vg.Length(6)
	if l.below {
		label.YAlign, away = draw.YTop, -away
	}
	first := 0
	for i, at := range line {
		c.DrawGlyph(draw.GlyphStyle{Color: l.color, Radius: 4, Shape: draw.CircleGlyph{}}, at)
		if i+1 < len(line) && math.Hypot(float64(at.X-line[i+1].X), float64(at.Y-line[i+1].Y)) < 18 {
			continue // one label for points that are close together
		}
		text := l.texts[i]
		if first < i {
			text = l.texts[first] + "–" + text
		}
		c.FillText(label, vg.Point{X: at.X, Y: at.Y + away}, text)
		first = i + 1
	}
}
