// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/lab/report"
)

// figure draws the times of the daemons above the times of the wakes.
func figure(s Samples) report.Figure {
	return func(c draw.Canvas) error {
		report.DrawPanels(c,
			panel(fmt.Sprintf("Until %d daemons have it: half (blue) and all (orange)", s.Daemons), []row{
				{"join: connected", s.Join.Connected}, {"join: services", s.Join.Table}, {"join: nodes", s.Join.Nodes},
				{"new leader: connected", s.Leader.Connected}, {"new leader: services", s.Leader.Table},
				{"new leader: nodes", s.Leader.Nodes}, {"new leader: pods", s.Leader.Pods},
			}, 100),
			panel(fmt.Sprintf("%d wakes at %d per second: median (blue) and 99th percentile (orange)",
				len(s.Wakes.All), s.Rate), []row{
				{"the daemon that asked has the pod", s.Wakes.Asker}, {"all daemons have the pod", s.Wakes.All},
			}, 99))
		return nil
	}
}

// row is a row of a panel.
type row struct {
	name  string
	times []float64 // in milliseconds
}

// panel draws the median and a high percentile of each row.
func panel(title string, rows []row, high float64) *plot.Plot {
	p := report.NewPlot(title, "milliseconds")
	names, greatest := make([]string, len(rows)), 1.0
	for i, r := range rows {
		names[i] = r.name
		if len(r.times) > 0 {
			greatest = max(greatest, report.Percentile(r.times, high))
		}
	}
	report.XFromZero(p, greatest*1.12)
	report.NamedRows(p, names)
	for i, r := range rows {
		if len(r.times) == 0 {
			continue
		}
		y, median, most := report.RowAt(i, len(rows)), report.Median(r.times), report.Percentile(r.times, high)
		p.Add(
			report.Bar{To: median, Y: y + 0.19, Thickness: 0.34, Fill: report.Blue, Text: amount(median)},
			report.Bar{To: most, Y: y - 0.19, Thickness: 0.34, Fill: report.Orange, Text: amount(most)})
	}
	return p
}

// amount formats milliseconds with about three digits.
func amount(ms float64) string {
	if ms < 10 {
		return report.Decimal(ms)
	}
	return report.Whole(ms)
}
