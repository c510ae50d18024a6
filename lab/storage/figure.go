// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/lab/report"
)

// colors are the colours of the tests whose lines a figure shows.
var colors = map[string]color.RGBA{
	"layer": report.Red, "volume": report.Blue, "split_layer": report.Orange, "split_volume": report.Sky,
	"tuned": report.Green, "direct": report.Grey,
}

// shown returns the tests with a colour that were measured.
func shown(raw Samples) (keys []string) {
	for _, c := range raw.Cases {
		if _, ok := colors[c.Key]; ok && len(raw.of(c.Key)) > 0 {
			keys = append(keys, c.Key)
		}
	}
	return keys
}

// figure draws median and 90 % line of each test above the distributions of some.
func figure(w workload, raw Samples) report.Figure {
	return func(c draw.Canvas) error {
		what := w.headline()
		if what == "" {
			what = "all operations"
		}
		bars := report.NewPlot(what+": median (dark) and 90 % line (light)", "time (ms)")
		var names []string
		greatest := 1.0
		for _, c := range raw.Cases {
			names = append(names, c.Name)
			if a := aggregateOf(together(raw.of(c.Key), w.headline())); a.samples > 0 {
				greatest = max(greatest, a.p90)
			}
		}
		report.XFromZero(bars, 1.35*greatest)
		report.NamedRows(bars, names)
		for i, c := range raw.Cases {
			a := aggregateOf(together(raw.of(c.Key), w.headline()))
			if a.samples == 0 {
				continue
			}
			y := report.RowAt(i, len(names))
			fill, ok := colors[c.Key]
			if !ok {
				fill = report.Purple
			}
			bars.Add(report.Bar{To: a.p90, Y: y, Thickness: 0.72, Fill: report.Translucent(fill, 0.35),
				Text: fmt.Sprintf("%.2f, %.2f", a.median, a.p90)},
				report.Bar{To: a.median, Y: y, Thickness: 0.42, Fill: fill})
		}
		report.Stack(c, 0.58, bars, distributions(w, raw))
		return nil
	}
}

// distributions draws the cumulative distributions of some tests, with a logarithmic axis of time.
func distributions(w workload, raw Samples) *plot.Plot {
	p := report.NewPlot("Share of operations that took at most a time", "time (ms)")
	least, most := math.Inf(1), 0.0
	for _, key := range shown(raw) {
		var all []float64
		for _, r := range raw.of(key) {
			all = append(all, r.latencies(w.headline())...)
		}
		if len(all) == 0 {
			continue
		}
		slices.Sort(all)
		var points plotter.XYs
		for q := 0.5; q <= 99.5; q += 0.5 {
			x := max(0.001, report.Percentile(all, q))
			points = append(points, plotter.XY{X: x, Y: q})
			least, most = min(least, x), max(most, x)
		}
		line := plotter.Line{XYs: points, LineStyle: draw.LineStyle{Color: colors[key], Width: 1.6}}
		p.Add(&line)
	}
	if most == 0 {
		least, most = 1, 10
	}
	report.YFromZero(p, "%", 100)
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.X.Min, p.X.Max = math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(most*1.01)))
	legend(p, raw)
	return p
}

func legend(p *plot.Plot, raw Samples) {
	of := map[string]color.RGBA{}
	var names []string
	for _, key := range shown(raw) {
		name := strings.ReplaceAll(key, "_", " ")
		of[name] = colors[key]
		names = append(names, name)
	}
	report.Legend(p, names, func(name string) color.RGBA { return of[name] })
	p.Legend.Left = true
}

// diskFigure draws writes, their wait and the disk's utilisation over time.
func diskFigure(raw Samples) report.Figure {
	return func(c draw.Canvas) error {
		report.DrawPanels(c,
			overTime(raw, "Writes", "MB/s", func(r Row) float64 { return r.WriteKB / 1000 }),
			overTime(raw, "Wait of a write (w_await)", "ms", func(r Row) float64 { return r.Await }),
			overTime(raw, "Utilisation", "%", func(r Row) float64 { return r.Util }))
		return nil
	}
}

func overTime(raw Samples, title, unit string, of func(Row) float64) *plot.Plot {
	p := report.NewPlot(title, "time since the beginning of the measurement (s)")
	greatest, end := 0.0, float64(iostatInterval)
	for _, key := range shown(raw) {
		rows := diskRows(raw.of(key)[0].Iostat)
		var points plotter.XYs
		for _, r := range rows {
			points = append(points, plotter.XY{X: r.At, Y: of(r)})
			greatest, end = max(greatest, of(r)), max(end, r.At)
		}
		if len(points) > 0 {
			p.Add(&plotter.Line{XYs: points, LineStyle: draw.LineStyle{Color: colors[key], Width: 1.6}})
		}
	}
	report.XFromZero(p, end)
	report.YFromZero(p, unit, max(1e-3, 1.1*greatest))
	if title == "Writes" {
		legend(p, raw)
	}
	return p
}

// diskRows returns the rows of the device with the most writing that is no loop device.
func diskRows(rows []Row) (out []Row) {
	written := map[string]float64{}
	device := ""
	for _, r := range rows {
		if strings.HasPrefix(r.Device, "loop") || strings.HasPrefix(r.Device, "zram") {
			continue
		}
		written[r.Device] += r.WriteKB
		if device == "" || written[r.Device] > written[device] {
			device = r.Device
		}
	}
	for _, r := range rows {
		if r.Device == device {
			out = append(out, r)
		}
	}
	return out
}
