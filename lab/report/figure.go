// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Figure draws a plot on a canvas that has the size of the plots of all reports.
type Figure func(draw.Canvas) error

// Size of the plots, and resolution of the PNG.
const (
	figureWidth  = 9 * vg.Inch
	figureHeight = 6.6 * vg.Inch
	figureDPI    = 144
)

// Colours that people with any kind of colour vision can tell apart (Okabe and Ito, 2008), and red.
var (
	Blue   = color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}
	Orange = color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff}
	Purple = color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff}
	Green  = color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff}
	Sky    = color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff}
	Red    = color.RGBA{R: 0xcc, G: 0x1f, B: 0x1f, A: 0xff}
	Grey   = color.RGBA{R: 0x8c, G: 0x8c, B: 0x8c, A: 0xff}
	// Ink is for text, axes and marks.
	Ink   = color.RGBA{R: 0x22, G: 0x22, B: 0x22, A: 0xff}
	faint = color.RGBA{R: 0xe4, G: 0xe4, B: 0xe4, A: 0xff}
)

// Translucent returns a colour with an opacity from 0 to 1.
func Translucent(c color.RGBA, alpha float64) color.Color {
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
	// Arial and Helvetica have the same widths as Liberation Sans, for machines without it.
	svg = bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans"),
		[]byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
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

// NewPlot returns an empty plot in the style of the reports, with a title and a label for the horizontal axis.
func NewPlot(title, x string) *plot.Plot {
	p := plot.New()
	sans := font.Font{Typeface: "Liberation", Variant: "Sans"}
	p.Title.Text, p.X.Label.Text = title, x
	p.Title.TextStyle.Font, p.Title.TextStyle.Font.Size = sans, 13
	p.Title.TextStyle.Font.Weight = 2 // bold
	p.Title.Padding = 8
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font, axis.Label.TextStyle.Font.Size = sans, 11
		axis.Tick.Label.Font, axis.Tick.Label.Font.Size = sans, 10.5
		axis.Color, axis.Tick.Color, axis.Tick.Label.Color, axis.Label.TextStyle.Color = Ink, Ink, Ink, Ink
		axis.LineStyle.Width, axis.Tick.LineStyle.Width = 0.6, 0.6
	}
	p.X.Label.Padding = 4
	p.Title.TextStyle.Color = Ink
	return p
}

// NamedRows makes the vertical axis one of named rows, the first at the top. Row i is at RowAt(i, n).
func NamedRows(p *plot.Plot, names []string) {
	ticks := make([]plot.Tick, len(names))
	for i, name := range names {
		ticks[i] = plot.Tick{Value: RowAt(i, len(names)), Label: name}
	}
	p.Y.Tick.Marker = plot.ConstantTicks(ticks)
	p.Y.Tick.Length = 0
	p.Y.Min, p.Y.Max = -0.6, float64(len(names))-0.4
	p.Y.LineStyle.Width = 0
}

// RowAt returns the vertical position of row i of n.
func RowAt(i, n int) float64 { return float64(n - 1 - i) }

// XFromZero makes the horizontal axis one from zero that has room for greatest.
func XFromZero(p *plot.Plot, greatest float64) {
	step := niceStep(greatest)
	p.X.Min, p.X.Max = 0, math.Ceil(greatest/step)*step
	var ticks []plot.Tick
	for v := 0.0; v <= p.X.Max+step/2; v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(round(v), 'f', -1, 64)})
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	p.Add(gridLines(ticks))
}

// niceStep returns 1, 2 or 5 times a power of ten such that greatest is 5 to 10 steps.
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

// gridLines draws a faint vertical line at every tick.
type gridLines []plot.Tick

// Plot implements plot.Plotter.
func (g gridLines) Plot(c draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	for _, t := range g {
		c.StrokeLine2(draw.LineStyle{Color: faint, Width: 0.6}, x(t.Value), c.Min.Y, x(t.Value), c.Max.Y)
	}
}

// YFromZero makes the vertical axis one from zero to greatest.
func YFromZero(p *plot.Plot, label string, greatest float64) {
	p.Y.Label.Text = label
	p.Y.Min, p.Y.Max = 0, greatest
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color, grid.Horizontal.Width, grid.Horizontal.Dashes = faint, 0.6, nil
	p.Add(grid)
}

// DrawPanels draws plots one above the other with aligned vertical axes.
func DrawPanels(c draw.Canvas, panels ...*plot.Plot) {
	rows := make([][]*plot.Plot, len(panels))
	for i, p := range panels {
		rows[i] = []*plot.Plot{p}
	}
	canvases := plot.Align(rows, draw.Tiles{Rows: len(rows), Cols: 1, PadY: 10}, c)
	for i, p := range panels {
		p.Draw(canvases[i][0])
	}
}

// Stack draws one plot above another with aligned vertical axes; share is the upper one's part of the height.
func Stack(c draw.Canvas, share float64, upper, lower *plot.Plot) {
	height := c.Max.Y - c.Min.Y
	top := draw.Crop(c, 0, 0, vg.Length(1-share+0.01)*height, 0)
	bottom := draw.Crop(c, 0, 0, 0, -vg.Length(share+0.02)*height)
	aligned := plot.Align([][]*plot.Plot{{upper}, {lower}}, draw.Tiles{Rows: 2, Cols: 1}, c)
	top.Min.X, top.Max.X = aligned[0][0].Min.X, aligned[0][0].Max.X
	bottom.Min.X, bottom.Max.X = aligned[1][0].Min.X, aligned[1][0].Max.X
	upper.Draw(top)
	lower.Draw(bottom)
}

// Legend names colours at the top right of a plot.
func Legend(p *plot.Plot, names []string, colorOf func(name string) color.RGBA) {
	p.Legend.Top = true
	p.Legend.TextStyle = p.X.Tick.Label
	p.Legend.TextStyle.XAlign, p.Legend.TextStyle.YAlign = draw.XLeft, draw.YCenter
	p.Legend.XOffs, p.Legend.YOffs = -4, -2
	p.Legend.Padding = 9
	for _, name := range names {
		p.Legend.Add(name, thumbnail{colorOf(name)})
	}
}

type thumbnail struct{ color color.Color }

// Thumbnail implements plot.Thumbnailer.
func (t thumbnail) Thumbnail(c *draw.Canvas) {
	y := (c.Min.Y + c.Max.Y) / 2
	c.StrokeLine2(draw.LineStyle{Color: t.color, Width: 2.5}, c.Min.X, y, c.Max.X, y)
}
