// SPDX-License-Identifier: Apache-2.0

package strangers

import (
	"fmt"

	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/lab/report"
)

// figure draws the median and the 99th percentile of each part.
func figure(s Samples) report.Figure {
	return func(c draw.Canvas) error {
		names, greatest := make([]string, len(s.Parts)), 1.0
		for i, p := range s.Parts {
			names[i] = fmt.Sprintf("calm (%d)", len(p.Wakes))
			if p.Flood {
				names[i] = fmt.Sprintf("flood (%d)", len(p.Wakes))
			}
			if len(p.Wakes) > 0 {
				greatest = max(greatest, report.Percentile(p.Wakes, 99))
			}
		}
		p := report.NewPlot("Wakes in each part, in order: median (blue) and 99th percentile (orange)", "milliseconds")
		report.XFromZero(p, greatest*1.12)
		report.NamedRows(p, names)
		for i, part := range s.Parts {
			if len(part.Wakes) == 0 {
				continue
			}
			y, median, most := report.RowAt(i, len(names)), report.Median(part.Wakes), report.Percentile(part.Wakes, 99)
			p.Add(
				report.Bar{To: median, Y: y + 0.19, Thickness: 0.34, Fill: report.Blue, Text: report.Decimal(median)},
				report.Bar{To: most, Y: y - 0.19, Thickness: 0.34, Fill: report.Orange, Text: report.Decimal(most)})
		}
		p.Draw(c)
		return nil
	}
}
