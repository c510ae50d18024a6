// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// More colours of the same set.
var (
	sky = color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff}
	red = color.RGBA{R: 0xcc, G: 0x1f, B: 0x1f, A: 0xff}
)

func modeColor(mode string) color.RGBA {
	switch mode {
	case ModeIptables:
		return orange
	case ModeNftables:
		return sky
	case ModeWangell:
		return blue
	}
	return grey
}

// errorBar is a line around a mean in a row, of a standard deviation to either side, with the mean as text.
type errorBar struct{ mean, dev, y float64 }

// Plot implements plot.Plotter.
func (e errorBar) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	right := x(e.mean)
	if !math.IsNaN(e.dev) {
		style := draw.LineStyle{Color: ink, Width: 1.2}
		right = x(e.mean + e.dev)
		c.StrokeLine2(style, x(e.mean-e.dev), y(e.y), right, y(e.y))
		for _, end := range []vg.Length{x(e.mean - e.dev), right} {
			c.StrokeLine2(style, end, y(e.y)-4, end, y(e.y)+4)
		}
	}
	text := p.X.Tick.Label
	text.Font.Size, text.XAlign, text.YAlign = 9, draw.XLeft, draw.YCenter
	c.FillText(text, vg.Point{X: right + 5, Y: y(e.y)}, fmt.Sprintf("%.2f s", e.mean))
}

// dots draws samples in a row.
type dots struct {
	samples []float64
	y       float64
}

// Plot implements plot.Plotter.
func (d dots) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for _, v := range d.samples {
		c.DrawGlyph(draw.GlyphStyle{Color: translucent(ink, 0.5), Radius: 2.5, Shape: draw.CircleGlyph{}}, vg.Point{X: x(v), Y: y(d.y)})
	}
}

// fixedFigure draws mean times, with every sample below.
func fixedFigure(cfg ScalingConfig, samples []FixedSample) Figure {
	return func(c draw.Canvas) error {
		p := newPlot(fmt.Sprintf("%d requests, %d pods: mean time of a run, standard deviation, and every run (dots)", cfg.Requests, scalingReplicas), "seconds")
		rows(p, cfg.Modes)
		var ends []float64
		for _, mode := range cfg.Modes {
			if times := fixedTimes(samples, mode); len(times) > 0 {
				ends = append(ends, slices.Max(times))
			}
		}
		milliseconds(p, 1.12*slices.Max(append(ends, 0.1)))
		for i, mode := range cfg.Modes {
			times := fixedTimes(samples, mode)
			if len(times) == 0 {
				continue
			}
			mean, dev, y := Mean(times), StdDev(times), rowAt(i, len(cfg.Modes))
			p.Add(bar{to: mean, y: y, thickness: 0.5, fill: modeColor(mode)}, errorBar{mean, dev, y}, dots{times, y - 0.35})
		}
		p.Draw(c)
		return nil
	}
}

// ratesFigure draws short connections above requests on kept ones.
func ratesFigure(cfg ScalingConfig, samples []RateSample) Figure {
	return func(c draw.Canvas) error {
		modes := cfg.rateModes()
		var panels [][]*plot.Plot
		for _, kind := range []struct {
			title string
			keep  bool
		}{{"Short connections, median", false}, {"Requests on kept connections, median", true}} {
			p := newPlot(kind.title+" (dark: clients in pods, light: clients on the LAN)", "per second")
			rows(p, modes)
			median := func(mode, clients string) float64 { return Median(rateValues(samples, mode, clients, kind.keep)) }
			greatest := 1.0
			for _, mode := range modes {
				for _, clients := range rateClients {
					if v := median(mode, clients); !math.IsNaN(v) {
						greatest = max(greatest, v)
					}
				}
			}
			milliseconds(p, greatest*1.08)
			for i, mode := range modes {
				for j, clients := range rateClients {
					v := median(mode, clients)
					if math.IsNaN(v) {
						continue
					}
					fill := color.Color(modeColor(mode))
					if j == 1 {
						fill = translucent(modeColor(mode), 0.45)
					}
					p.Add(bar{to: v, y: rowAt(i, len(modes)) + 0.19 - 0.38*float64(j), thickness: 0.34, fill: fill, text: whole(v)})
				}
			}
			panels = append(panels, []*plot.Plot{p})
		}
		drawPanels(c, panels)
		return nil
	}
}

// drawPanels draws plots above each other, with their vertical axes in one line.
func drawPanels(c draw.Canvas, panels [][]*plot.Plot) {
	canvases := plot.Align(panels, draw.Tiles{Rows: len(panels), Cols: 1, PadY: 10}, c)
	for i := range panels {
		panels[i][0].Draw(canvases[i][0])
	}
}

// legend names the modes by their colours at the top right.
func legend(p *plot.Plot, modes []string) {
	p.Legend.Top = true
	p.Legend.TextStyle = p.X.Tick.Label
	p.Legend.TextStyle.XAlign, p.Legend.TextStyle.YAlign = draw.XLeft, draw.YCenter
	p.Legend.XOffs, p.Legend.YOffs = -4, -2
	p.Legend.Padding = 9
	for _, mode := range modes {
		p.Legend.Add(mode, thumb{modeColor(mode)})
	}
}

type thumb struct{ color color.Color }

// Thumbnail implements plot.Thumbnailer.
func (t thumb) Thumbnail(c *draw.Canvas) {
	y := (c.Min.Y + c.Max.Y) / 2
	c.StrokeLine2(draw.LineStyle{Color: t.color, Width: 2.5}, c.Min.X, y, c.Max.X, y)
}

// fromZero makes a vertical axis from zero.
func fromZero(p *plot.Plot, label string, greatest float64) {
	p.Y.Label.Text = label
	p.Y.Min, p.Y.Max = 0, greatest
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color, grid.Horizontal.Width, grid.Horizontal.Dashes = faint, 0.6, nil
	p.Add(grid)
}

// replicasFigure draws mean times by pods above the times of autoscaled repetitions.
func replicasFigure(cfg ScalingConfig, samples []ReplicaSample) Figure {
	return func(c draw.Canvas) error {
		all := collect(samples, func(s ReplicaSample) (float64, bool) { return s.Seconds, s.Aborted == "" })
		greatest := 1.25 * slices.Max(append(all, 0.1))
		top := newPlot(fmt.Sprintf("%d requests: mean time of a run and standard deviation, by pods", cfg.Requests), "pods (1-3: autoscaled)")
		fromZero(top, "seconds", greatest)
		var ticks []plot.Tick
		for i, n := range cfg.replicaSettings() {
			ticks = append(ticks, plot.Tick{Value: float64(i), Label: setting(n)})
			for j, mode := range cfg.Modes {
				times := replicaTimes(samples, mode, n)
				if len(times) == 0 {
					continue
				}
				top.Add(column{x: float64(i) + 0.26*(float64(j)-float64(len(cfg.Modes)-1)/2), width: 0.24, to: Mean(times), dev: StdDev(times), fill: modeColor(mode)})
			}
		}
		top.X.Tick.Marker = plot.ConstantTicks(ticks)
		top.X.Min, top.X.Max = -0.6, float64(len(ticks))-0.4
		legend(top, cfg.Modes)
		bottom := newPlot("Autoscaled, 1 to 3 pods: time of each repetition", "repetition")
		fromZero(bottom, "seconds", greatest)
		var repetitions []plot.Tick
		for i := range cfg.Repetitions {
			repetitions = append(repetitions, plot.Tick{Value: float64(i + 1), Label: strconv.Itoa(i + 1)})
		}
		bottom.X.Tick.Marker = plot.ConstantTicks(repetitions)
		bottom.X.Min, bottom.X.Max = 0.5, float64(cfg.Repetitions)+0.5
		for _, mode := range cfg.Modes {
			var points plotter.XYs
			for _, s := range samples {
				if s.Mode == mode && s.Replicas == 0 && s.Aborted == "" {
					points = append(points, plotter.XY{X: float64(s.Repetition + 1), Y: s.Seconds})
				}
			}
			if len(points) == 0 {
				continue
			}
			line, dots, err := plotter.NewLinePoints(points)
			if err != nil {
				return err
			}
			line.Color, line.Width = modeColor(mode), 1.8
			dots.Color, dots.Shape, dots.Radius = modeColor(mode), draw.CircleGlyph{}, 3
			bottom.Add(line, dots)
		}
		drawPanels(c, [][]*plot.Plot{{top}, {bottom}})
		return nil
	}
}

// column is a vertical bar with its standard deviation.
type column struct {
	x, width, to, dev float64
	fill              color.Color
}

// Plot implements plot.Plotter.
func (b column) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	left, right := x(b.x-b.width/2), x(b.x+b.width/2)
	c.FillPolygon(b.fill, []vg.Point{{X: left, Y: y(0)}, {X: right, Y: y(0)}, {X: right, Y: y(b.to)}, {X: left, Y: y(b.to)}})
	if math.IsNaN(b.dev) {
		return
	}
	style := draw.LineStyle{Color: ink, Width: 1.2}
	c.StrokeLine2(style, x(b.x), y(max(0, b.to-b.dev)), x(b.x), y(b.to+b.dev))
	for _, end := range []float64{max(0, b.to-b.dev), b.to + b.dev} {
		c.StrokeLine2(style, x(b.x)-4, y(end), x(b.x)+4, y(end))
	}
}

// alternatingFigure draws the pods over time, a panel for each mode.
func alternatingFigure(modes []AlternatingMode) Figure {
	return func(c draw.Canvas) error {
		end := 1.0
		for _, m := range modes {
			for _, r := range m.Runs {
				end = max(end, r.End)
			}
		}
		var panels [][]*plot.Plot
		for i, m := range modes {
			aborted := 0
			for _, r := range m.Runs {
				if r.Aborted != "" {
					aborted++
				}
			}
			x := ""
			if i == len(modes)-1 {
				x = "seconds"
			}
			p := newPlot(fmt.Sprintf("%s: pods, and runs of ab below (%d of %d broke off: red)", m.Mode, aborted, len(m.Runs)), x)
			milliseconds(p, end)
			fromZero(p, "pods", 3.4)
			p.Y.Min = -0.9
			p.Y.Tick.Marker = plot.ConstantTicks([]plot.Tick{{Value: 0, Label: "0"}, {Value: 1, Label: "1"}, {Value: 2, Label: "2"}, {Value: 3, Label: "3"}})
			var wanted, ready plotter.XYs
			for _, s := range m.Steps {
				wanted = append(wanted, plotter.XY{X: s.At, Y: float64(s.Wanted)})
				ready = append(ready, plotter.XY{X: s.At, Y: float64(s.Ready)})
			}
			if n := len(m.Steps); n > 0 && len(m.Runs) > 0 { // until the last run's end
				last := m.Runs[len(m.Runs)-1].End
				wanted, ready = append(wanted, plotter.XY{X: last, Y: wanted[n-1].Y}), append(ready, plotter.XY{X: last, Y: ready[n-1].Y})
			}
			for _, series := range []struct {
				points plotter.XYs
				color  color.RGBA
				dashes []vg.Length
				width  vg.Length
			}{{ready, blue, nil, 2}, {wanted, grey, []vg.Length{3, 3}, 1.2}} {
				if len(series.points) == 0 {
					continue
				}
				line, err := plotter.NewLine(series.points)
				if err != nil {
					return err
				}
				line.StepStyle = plotter.PostStep
				line.Color, line.Dashes, line.Width = series.color, series.dashes, series.width
				p.Add(line)
			}
			for _, r := range m.Runs {
				p.Add(run{r})
			}
			panels = append(panels, []*plot.Plot{p})
		}
		drawPanels(c, panels)
		return nil
	}
}

// run draws a run of ab as a line below the pods: green, or red if it broke off. Much load is drawn thick.
type run struct{ AlternatingRun }

// Plot implements plot.Plotter.
func (r run) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := draw.LineStyle{Color: green, Width: 2}
	if r.Aborted != "" {
		style.Color = red
	}
	if r.Concurrency > 1 {
		style.Width = 6
	}
	c.StrokeLine2(style, x(r.At), y(-0.5), max(x(r.End), x(r.At)+2), y(-0.5))
}

// flapFigure draws the failed requests of each case.
func flapFigure(cfg ScalingConfig, samples []FlapSample) Figure {
	return func(c draw.Canvas) error {
		p := newPlot("Failed requests while pods come and go", "failed requests")
		cases := cfg.flapCases()
		names := make([]string, len(cases))
		for i, f := range cases {
			names[i] = f.String()
		}
		rows(p, names)
		milliseconds(p, 1.15*slices.Max(append(collect(samples, func(s FlapSample) (float64, bool) { return float64(s.Failed), true }), 1)))
		for _, s := range samples {
			i, j := slices.Index(cases, s.FlapCase), slices.Index(cfg.Modes, s.Mode)
			y := rowAt(i, len(names)) + 0.26*(float64(len(cfg.Modes)-1)/2-float64(j))
			p.Add(bar{to: float64(s.Failed), y: y, thickness: 0.24, fill: modeColor(s.Mode), text: fmt.Sprintf("%d of %d", s.Failed, s.Requests)})
		}
		legend(p, cfg.Modes)
		p.Draw(c)
		return nil
	}
}
