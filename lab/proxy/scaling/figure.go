// SPDX-License-Identifier: Apache-2.0

package scaling

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

	"wangell.loutres.me/lab/proxy"
	"wangell.loutres.me/lab/report"
)

// fixedFigure draws the mean times, with every sample below its bar.
func fixedFigure(plan plan, samples []FixedSample) report.Figure {
	return func(c draw.Canvas) error {
		title := fmt.Sprintf("%d requests, %d pods: mean time of a run, standard deviation, and every run (dots)",
			plan.requests, fixedReplicas)
		p := report.NewPlot(title, "seconds")
		report.NamedRows(p, plan.modes)
		greatest := 0.1
		for _, s := range samples {
			if s.Aborted == "" {
				greatest = max(greatest, s.Seconds)
			}
		}
		report.XFromZero(p, 1.12*greatest)
		for i, mode := range plan.modes {
			times := fixedTimes(samples, mode)
			if len(times) == 0 {
				continue
			}
			mean, y := report.Mean(times), report.RowAt(i, len(plan.modes))
			p.Add(report.Bar{To: mean, Y: y, Thickness: 0.5, Fill: proxy.ModeColor(mode)},
				report.ErrorBar{Mean: mean, StdDev: report.StdDev(times), Y: y},
				report.Dots{Samples: times, Y: y - 0.35})
		}
		p.Draw(c)
		return nil
	}
}

// ratesFigure draws short connections above requests on persistent ones.
func ratesFigure(plan plan, samples []RateSample) report.Figure {
	return func(c draw.Canvas) error {
		report.DrawPanels(c,
			ratesPlot("Short connections, median", withDirect(plan.modes), samples, false),
			ratesPlot("Requests on persistent connections, median", withDirect(plan.modes), samples, true))
		return nil
	}
}

func ratesPlot(title string, modes []string, samples []RateSample, keep bool) *plot.Plot {
	p := report.NewPlot(title+" (dark: clients in pods, light: clients on the LAN)", "per second")
	report.NamedRows(p, modes)
	greatest := 1.0
	var bars []plot.Plotter
	for i, mode := range modes {
		for j, clients := range rateClients {
			v := report.Median(rateValues(samples, mode, clients, keep))
			if math.IsNaN(v) {
				continue
			}
			greatest = max(greatest, v)
			fill := color.Color(proxy.ModeColor(mode))
			if j == 1 {
				fill = report.Translucent(proxy.ModeColor(mode), 0.45)
			}
			y := report.RowAt(i, len(modes)) + 0.19 - 0.38*float64(j)
			bars = append(bars, report.Bar{To: v, Y: y, Thickness: 0.34, Fill: fill, Text: report.Whole(v)})
		}
	}
	report.XFromZero(p, greatest*1.08)
	p.Add(bars...)
	return p
}

// replicasFigure draws the mean times by pods above the times of autoscaled repetitions.
func replicasFigure(plan plan, samples []ReplicaSample) report.Figure {
	return func(c draw.Canvas) error {
		all := report.Collect(samples, func(s ReplicaSample) (float64, bool) { return s.Seconds, s.Aborted == "" })
		greatest := 1.25 * slices.Max(append(all, 0.1))
		bottom, err := autoscaledPlot(plan, samples, greatest)
		if err != nil {
			return err
		}
		report.DrawPanels(c, byReplicasPlot(plan, samples, greatest), bottom)
		return nil
	}
}

func byReplicasPlot(plan plan, samples []ReplicaSample, greatest float64) *plot.Plot {
	title := fmt.Sprintf("%d requests: mean time of a run and standard deviation, by pods", plan.requests)
	p := report.NewPlot(title, "pods (1-3: autoscaled)")
	report.YFromZero(p, "seconds", greatest)
	var ticks []plot.Tick
	for i, n := range plan.replicas {
		ticks = append(ticks, plot.Tick{Value: float64(i), Label: replicasText(n)})
		for j, mode := range plan.modes {
			times := replicaTimes(samples, mode, n)
			if len(times) == 0 {
				continue
			}
			x := float64(i) + 0.26*(float64(j)-float64(len(plan.modes)-1)/2)
			p.Add(report.Column{X: x, Width: 0.24, To: report.Mean(times), StdDev: report.StdDev(times),
				Fill: proxy.ModeColor(mode)})
		}
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	p.X.Min, p.X.Max = -0.6, float64(len(ticks))-0.4
	report.Legend(p, plan.modes, proxy.ModeColor)
	return p
}

func autoscaledPlot(plan plan, samples []ReplicaSample, greatest float64) (*plot.Plot, error) {
	p := report.NewPlot("Autoscaled, 1 to 3 pods: time of each repetition", "repetition")
	report.YFromZero(p, "seconds", greatest)
	var ticks []plot.Tick
	for i := range plan.repetitions {
		ticks = append(ticks, plot.Tick{Value: float64(i + 1), Label: strconv.Itoa(i + 1)})
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	p.X.Min, p.X.Max = 0.5, float64(plan.repetitions)+0.5
	for _, mode := range plan.modes {
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
			return nil, err
		}
		line.Color, line.Width = proxy.ModeColor(mode), 1.8
		dots.Color, dots.Shape, dots.Radius = proxy.ModeColor(mode), draw.CircleGlyph{}, 3
		p.Add(line, dots)
	}
	return p, nil
}

// alternatingFigure draws the pods over time, a panel for each mode.
func alternatingFigure(modes []AlternatingMode) report.Figure {
	return func(c draw.Canvas) error {
		end := 1.0
		for _, m := range modes {
			for _, r := range m.Runs {
				end = max(end, r.End)
			}
		}
		var panels []*plot.Plot
		for i, m := range modes {
			label := ""
			if i == len(modes)-1 {
				label = "seconds"
			}
			p, err := podsPlot(m, label, end)
			if err != nil {
				return err
			}
			panels = append(panels, p)
		}
		report.DrawPanels(c, panels...)
		return nil
	}
}

// podsPlot draws the pods of a mode, and the runs of ab below.
func podsPlot(m AlternatingMode, label string, end float64) (*plot.Plot, error) {
	title := fmt.Sprintf("%s: pods (dashed: wanted), and runs of ab below (thick: heavy; red: broke off, %d of %d)",
		m.Mode, m.aborted(), len(m.Runs))
	p := report.NewPlot(title, label)
	p.Title.TextStyle.Font.Size = 11
	report.XFromZero(p, end)
	report.YFromZero(p, "pods", 3.4)
	p.Y.Min = -0.9
	p.Y.Tick.Marker = plot.ConstantTicks([]plot.Tick{
		{Value: 0, Label: "0"}, {Value: 1, Label: "1"}, {Value: 2, Label: "2"}, {Value: 3, Label: "3"},
	})
	var wanted, ready plotter.XYs
	for _, s := range m.Steps {
		wanted = append(wanted, plotter.XY{X: s.At, Y: float64(s.Wanted)})
		ready = append(ready, plotter.XY{X: s.At, Y: float64(s.Ready)})
	}
	if n := len(m.Steps); n > 0 && len(m.Runs) > 0 { // until the end of the last run
		last := m.Runs[len(m.Runs)-1].End
		wanted = append(wanted, plotter.XY{X: last, Y: wanted[n-1].Y})
		ready = append(ready, plotter.XY{X: last, Y: ready[n-1].Y})
	}
	for _, series := range []struct {
		points plotter.XYs
		color  color.RGBA
		dashes []vg.Length
		width  vg.Length
	}{{ready, report.Blue, nil, 2}, {wanted, report.Grey, []vg.Length{3, 3}, 1.2}} {
		if len(series.points) == 0 {
			continue
		}
		line, err := plotter.NewLine(series.points)
		if err != nil {
			return nil, err
		}
		line.StepStyle = plotter.PostStep
		line.Color, line.Dashes, line.Width = series.color, series.dashes, series.width
		p.Add(line)
	}
	for _, r := range m.Runs {
		p.Add(runLine{r})
	}
	return p, nil
}

// runLine draws a run of ab as a line below the pods: green, or red if it broke off. Heavy load is thick.
type runLine struct{ AlternatingRun }

// Plot implements plot.Plotter.
func (r runLine) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := draw.LineStyle{Color: report.Green, Width: 2}
	if r.Aborted != "" {
		style.Color = report.Red
	}
	if r.Concurrency > 1 {
		style.Width = 6
	}
	c.StrokeLine2(style, x(r.At), y(-0.5), max(x(r.End), x(r.At)+2), y(-0.5))
}

// flapFigure draws the failed requests of each case.
func flapFigure(plan plan, samples []FlapSample) report.Figure {
	return func(c draw.Canvas) error {
		p := report.NewPlot("Failed requests while pods come and go", "failed requests")
		names := make([]string, len(plan.cases))
		for i, f := range plan.cases {
			names[i] = f.String()
		}
		report.NamedRows(p, names)
		greatest := 1
		for _, s := range samples {
			greatest = max(greatest, s.Failed)
		}
		report.XFromZero(p, 1.15*float64(greatest))
		for _, s := range samples {
			i, j := slices.Index(plan.cases, s.FlapCase), slices.Index(plan.modes, s.Mode)
			y := report.RowAt(i, len(names)) + 0.26*(float64(len(plan.modes)-1)/2-float64(j))
			p.Add(report.Bar{To: float64(s.Failed), Y: y, Thickness: 0.24, Fill: proxy.ModeColor(s.Mode),
				Text: fmt.Sprintf("%d of %d", s.Failed, s.Requests)})
		}
		report.Legend(p, plan.modes, proxy.ModeColor)
		p.Draw(c)
		return nil
	}
}
