// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Bar is a horizontal bar with text at its right end. Positions are in units of the axes.
type Bar struct {
	From, To, Y, Thickness float64
	Fill                   color.Color
	Text                   string
}

// Plot implements plot.Plotter.
func (b Bar) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	left, right := x(b.From), x(b.To)
	right = max(right, left+1) // too short to see: a line
	top, bottom := y(b.Y+b.Thickness/2), y(b.Y-b.Thickness/2)
	c.FillPolygon(b.Fill, []vg.Point{
		{X: left, Y: bottom}, {X: right, Y: bottom}, {X: right, Y: top}, {X: left, Y: top},
	})
	if b.Text == "" {
		return
	}
	style := p.X.Tick.Label
	style.Font.Size, style.XAlign, style.YAlign = 9, draw.XLeft, draw.YCenter
	at := right + 4
	if at+style.Width(b.Text) > c.Max.X { // no room: to the left of the bar
		style.XAlign, at = draw.XRight, left-4
	}
	c.FillText(style, vg.Point{X: at, Y: y(b.Y)}, b.Text)
}

// Strip draws every sample of a row as a dot, and the median in milliseconds as a line with its value.
type Strip struct {
	Samples []float64
	Y       float64
	Color   color.RGBA
}

// Plot implements plot.Plotter.
func (s Strip) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := draw.GlyphStyle{Color: Translucent(s.Color, 0.55), Radius: 3, Shape: draw.CircleGlyph{}}
	for i, v := range s.Samples {
		// Multiples of the golden ratio spread the dots vertically, so that equal values do not hide each other.
		_, off := math.Modf(float64(i) * math.Phi)
		c.DrawGlyph(style, vg.Point{X: x(v), Y: y(s.Y + (off-0.5)*0.42)})
	}
	if len(s.Samples) == 0 {
		return
	}
	median := Median(s.Samples)
	c.StrokeLine2(draw.LineStyle{Color: Ink, Width: 1.6}, x(median), y(s.Y-0.32), x(median), y(s.Y+0.32))
	label := p.X.Tick.Label
	label.Font.Size, label.XAlign, label.YAlign = 10, draw.XLeft, draw.YBottom
	text := fmt.Sprintf("median %.1f ms", median)
	at := min(x(median), c.Max.X-label.Width(text))
	c.FillText(label, vg.Point{X: at, Y: y(s.Y+0.32) + 2}, text)
}

// ErrorBar marks a standard deviation to either side of a mean in a row, with the mean in seconds as text.
type ErrorBar struct{ Mean, StdDev, Y float64 }

// Plot implements plot.Plotter.
func (e ErrorBar) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	right := x(e.Mean)
	if !math.IsNaN(e.StdDev) {
		style := draw.LineStyle{Color: Ink, Width: 1.2}
		right = x(e.Mean + e.StdDev)
		c.StrokeLine2(style, x(e.Mean-e.StdDev), y(e.Y), right, y(e.Y))
		for _, end := range []vg.Length{x(e.Mean - e.StdDev), right} {
			c.StrokeLine2(style, end, y(e.Y)-4, end, y(e.Y)+4)
		}
	}
	text := p.X.Tick.Label
	text.Font.Size, text.XAlign, text.YAlign = 9, draw.XLeft, draw.YCenter
	c.FillText(text, vg.Point{X: right + 5, Y: y(e.Y)}, fmt.Sprintf("%.2f s", e.Mean))
}

// Dots draws the samples of a row.
type Dots struct {
	Samples []float64
	Y       float64
}

// Plot implements plot.Plotter.
func (d Dots) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := draw.GlyphStyle{Color: Translucent(Ink, 0.5), Radius: 2.5, Shape: draw.CircleGlyph{}}
	for _, v := range d.Samples {
		c.DrawGlyph(style, vg.Point{X: x(v), Y: y(d.Y)})
	}
}

// Column is a vertical bar from zero with its standard deviation, which may be NaN.
type Column struct {
	X, Width, To, StdDev float64
	Fill                 color.Color
}

// Plot implements plot.Plotter.
func (b Column) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	left, right := x(b.X-b.Width/2), x(b.X+b.Width/2)
	c.FillPolygon(b.Fill, []vg.Point{
		{X: left, Y: y(0)}, {X: right, Y: y(0)}, {X: right, Y: y(b.To)}, {X: left, Y: y(b.To)},
	})
	if math.IsNaN(b.StdDev) {
		return
	}
	style := draw.LineStyle{Color: Ink, Width: 1.2}
	low, high := max(0, b.To-b.StdDev), b.To+b.StdDev
	c.StrokeLine2(style, x(b.X), y(low), x(b.X), y(high))
	for _, end := range []float64{low, high} {
		c.StrokeLine2(style, x(b.X)-4, y(end), x(b.X)+4, y(end))
	}
}
