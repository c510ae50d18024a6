// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"fmt"

	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/lab/report"
)

// figure draws the memory above the time to start.
func figure(samples []Sample) report.Figure {
	return func(c draw.Canvas) error {
		names := make([]string, len(samples))
		memory, start := 64.0, 1.0
		for i, s := range samples {
			names[i] = fmt.Sprintf("%d services", s.Services)
			memory, start = max(memory, s.Daemon.Resident, s.Controller.Resident), max(start, s.Start)
		}
		top := report.NewPlot("Resident memory by sleeping services: daemon (blue) and controller (orange)", "MiB")
		report.XFromZero(top, memory*1.08)
		report.NamedRows(top, names)
		bottom := report.NewPlot("Start of wangell up until every service can be woken", "seconds")
		report.XFromZero(bottom, start*1.08)
		report.NamedRows(bottom, names)
		for i, s := range samples {
			y := report.RowAt(i, len(samples))
			top.Add(
				report.Bar{To: s.Daemon.Resident, Y: y + 0.19, Thickness: 0.34, Fill: report.Blue,
					Text: report.Whole(s.Daemon.Resident)},
				report.Bar{To: s.Controller.Resident, Y: y - 0.19, Thickness: 0.34, Fill: report.Orange,
					Text: report.Whole(s.Controller.Resident)})
			bottom.Add(report.Bar{To: s.Start, Y: y, Thickness: 0.5, Fill: report.Grey, Text: report.Decimal(s.Start)})
		}
		report.DrawPanels(c, top, bottom)
		return nil
	}
}
