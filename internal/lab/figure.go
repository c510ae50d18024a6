// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Figure draws a plot onto a canvas of the size of a report's plots.
type Figure func(draw.Canvas) error

// The size of a report's plots, and the resolution of the PNG.
const (
	figureWidth  = 9 * vg.Inch
	figureHeight = 6.6 * vg.Inch
	figureDPI    = 144
)

// Colours that people with any kind of colour vision tell apart (Okabe and Ito, 2008).
var (
	blue   = color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}
	orange = color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff}
	purple = color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff}
	green  = color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff}
	grey   = color.RGBA{R: 0x8c, G: 0x8c, B: 0x8c, A: 0xff}
	ink    = color.RGBA{R: 0x22, G: 0x22, B: 0x22, A: 0xff}
	faint  = color.RGBA{R: 0xe4, G: 0xe4, B: 0xe4, A: 0xff}
)

// translucent returns a colour through which others shine.
func translucent(c color.RGBA, alpha float64) color.Color {
	return color.NRGBA{R: c.R, G: c.G, B: c.B, A: uint8(alpha * 255)}
}

// render draws a figure as SVG and as PNG.
func render(f Figure) (svg, png []byte, err error) {
	var b bytes.Buffer
	s := vgsvg.NewWith(vgsvg.UseWH(figureWidth, figureHeight))
	if err := paint(f, draw.New(s)); err != nil {
		return nil, nil, err
	}
	if _, err := s.WriteTo(&b); err != nil {
		return nil, nil, err
	}
	// Arial and Helvetica have letters of the same widths, for those who do not have Liberation.
	svg = bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
	b.Reset()
	p := vgimg.NewWith(vgimg.UseWH(figureWidth, figureHeight), vgimg.UseDPI(figureDPI))
	if err := paint(f, draw.New(p)); err != nil {
		return nil, nil, err
	}
	if _, err := (vgimg.PngCanvas{Canvas: p}).WriteTo(&b); err != nil {
		return nil, nil, err
	}
	return svg, b.Bytes(), nil
}

func paint(f Figure, c draw.Canvas) error {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	return f(draw.Crop(c, 0.15*vg.Inch, -0.2*vg.Inch, 0.1*vg.Inch, -0.1*vg.Inch))
}

// newPlot returns an empty plot in the style of the reports.
func newPlot(title, x string) *plot.Plot {
	p := plot.New()
	sans := font.Font{Typeface: "Liberation", Variant: "Sans"}
	p.Title.Text, p.X.Label.Text = title, x
	p.Title.TextStyle.Font, p.Title.TextStyle.Font.Size = sans, 13
	p.Title.TextStyle.Font.Weight = 2 // bold
	p.Title.Padding = 8
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font, axis.Label.TextStyle.Font.Size = sans, 11
		axis.Tick.Label.Font, axis.Tick.Label.Font.Size = sans, 10.5
		axis.Color, axis.Tick.Color, axis.Tick.Label.Color, axis.Label.TextStyle.Color = ink, ink, ink, ink
		axis.LineStyle.Width, axis.Tick.LineStyle.Width = 0.6, 0.6
	}
	p.X.Label.Padding = 4
	p.Title.TextStyle.Color = ink
	return p
}

// rows makes a vertical axis of named rows, the first at the top: row i is at rowAt(i, n).
func rows(p *plot.Plot, names []string) {
	ticks := make([]plot.Tick, len(names))
	for i, name := range names {
		ticks[i] = plot.Tick{Value: rowAt(i, len(names)), Label: name}
	}
	p.Y.Tick.Marker = plot.ConstantTicks(ticks)
	p.Y.Tick.Length = 0
	p.Y.Min, p.Y.Max = -0.6, float64(len(names))-0.4
	p.Y.LineStyle.Width = 0
}

func rowAt(i, n int) float64 { return float64(n - 1 - i) }

// milliseconds makes a horizontal axis from zero that holds everything up to greatest.
func milliseconds(p *plot.Plot, greatest float64) {
	step := niceStep(greatest)
	p.X.Min, p.X.Max = 0, math.Ceil(greatest/step)*step
	var ticks []plot.Tick
	for v := 0.0; v <= p.X.Max+step/2; v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64)})
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	p.Add(verticals(ticks))
}

// niceStep returns 1, 2 or 5 times a power of ten, of which 5 to 10 make greatest.
func niceStep(greatest float64) float64 {
	if greatest <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(greatest/5)))
	for _, m := range []float64{1, 2, 5} {
		if greatest/(m*power) <= 10 {
			return m * power
		}
	}
	return 10 * power
}

// verticals draws a faint line at every tick.
type verticals []plot.Tick

// Plot implements plot.Plotter.
func (v verticals) Plot(c draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	for _, t := range v {
		c.StrokeLine2(draw.LineStyle{Color: faint, Width: 0.6}, x(t.Value), c.Min.Y, x(t.Value), c.Max.Y)
	}
}

// bar is a horizontal bar with text at its right end.
type bar struct {
	from, to, y, thickness float64 // in units of the axes
	fill                   color.Color
	text                   string
}

// Plot implements plot.Plotter.
func (b bar) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	left, right := x(b.from), x(b.to)
	right = max(right, left+1) // what is too short to see is a line
	c.FillPolygon(b.fill, []vg.Point{{X: left, Y: y(b.y - b.thickness/2)}, {X: right, Y: y(b.y - b.thickness/2)},
		{X: right, Y: y(b.y + b.thickness/2)}, {X: left, Y: y(b.y + b.thickness/2)}})
	if b.text == "" {
		return
	}
	style := p.X.Tick.Label
	style.Font.Size, style.XAlign, style.YAlign = 9, draw.XLeft, draw.YCenter
	at := right + 4
	if at+style.Width(b.text) > c.Max.X { // no room: to the left of the bar
		style.XAlign, at = draw.XRight, left-4
	}
	c.FillText(style, vg.Point{X: at, Y: y(b.y)}, b.text)
}

// strip draws every sample of a row as a dot, and the median as a line with its value.
type strip struct {
	samples []float64
	y       float64
	color   color.RGBA
}

// Plot implements plot.Plotter.
func (s strip) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for i, v := range s.samples {
		// Dots of equal values must not hide one another: each is a little above or below, by the golden ratio.
		_, off := math.Modf(float64(i) * math.Phi)
		c.DrawGlyph(draw.GlyphStyle{Color: translucent(s.color, 0.55), Radius: 3, Shape: draw.CircleGlyph{}},
			vg.Point{X: x(v), Y: y(s.y + (off-0.5)*0.42)})
	}
	if len(s.samples) == 0 {
		return
	}
	median := Median(s.samples)
	c.StrokeLine2(draw.LineStyle{Color: ink, Width: 1.6}, x(median), y(s.y-0.32), x(median), y(s.y+0.32))
	style := p.X.Tick.Label
	style.Font.Size, style.XAlign, style.YAlign = 10, draw.XLeft, draw.YBottom
	text, at := fmt.Sprintf("median %.1f ms", median), x(median)
	at = min(at, c.Max.X-style.Width(text))
	c.FillText(style, vg.Point{X: at, Y: y(s.y+0.32) + 2}, text)
}
