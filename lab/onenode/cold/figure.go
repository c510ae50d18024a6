// SPDX-License-Identifier: Apache-2.0

package cold

import (
	"fmt"
	"slices"

	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/lab/report"
)

// figure draws all samples above the waterfall. The waterfall has an axis of its own: otherwise one slow sample would
// make it too small to read.
func figure(cold, floor []float64, phases []report.Phase) report.Figure {
	return func(c draw.Canvas) error {
		title := fmt.Sprintf("First byte of a cold request: %d samples of each kind, overhead %.1f ms at the median",
			len(cold), report.Median(cold)-report.Median(floor))
		samples := report.NewPlot(title, "time since connect() or start (ms)")
		report.XFromZero(samples, 1.04*slices.Max(slices.Concat([]float64{1}, cold, floor)))
		report.NamedRows(samples, []string{"cold request", "floor"})
		samples.Add(report.Strip{Samples: cold, Y: report.RowAt(0, 2), Color: report.Blue},
			report.Strip{Samples: floor, Y: report.RowAt(1, 2), Color: report.Orange})
		report.Stack(c, 0.35, samples, report.WaterfallPlot(phases,
			"Where the time goes: medians of the phases, cold request blue and floor orange"))
		return nil
	}
}
