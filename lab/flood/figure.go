// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"fmt"

	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/lab/report"
)

// figure draws the median and the 99th percentile of each kind of requests.
func figure(s Samples) report.Figure {
	return func(c draw.Canvas) error {
		var rows []kind
		for _, k := range kinds(s) {
			if len(k.r.Times) > 0 {
				rows = append(rows, k)
			}
		}
		names, greatest := make([]string, len(rows)), 1.0
		for i, k := range rows {
			names[i] = fmt.Sprintf("%s (%d)", k.name, int(k.r.n()))
			greatest = max(greatest, k.r.p(99))
		}
		p := report.NewPlot("Genuine requests during attacks: median (blue) and 99th percentile (orange)", "milliseconds")
		report.XFromZero(p, greatest*1.25)
		report.NamedRows(p, names)
		for i, k := range rows {
			y := report.RowAt(i, len(rows))
			text := amount(k.r.p(50)) + ", " + amount(k.r.p(99))
			if k.r.Failed > 0 {
				text += fmt.Sprintf(", %d failed", k.r.Failed)
			}
			p.Add(
				report.Bar{To: k.r.p(50), Y: y + 0.19, Thickness: 0.34, Fill: report.Blue},
				report.Bar{To: k.r.p(99), Y: y - 0.19, Thickness: 0.34, Fill: report.Orange, Text: text})
		}
		p.Draw(c)
		return nil
	}
}

// amount formats milliseconds with about three digits.
func amount(ms float64) string {
	if ms < 10 {
		return report.Decimal(ms)
	}
	return report.Whole(ms)
}
