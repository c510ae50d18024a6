// SPDX-License-Identifier: Apache-2.0

package coldkube

import (
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot/vg/draw"

	"wangell.loutres.me/lab/report"
)

// sideColor has the colours of the sides, the same as in the waterfall.
var sideColor = map[string]color.RGBA{
	SideWangell: report.Blue, SideFloor: report.Orange, SideKnative: report.Purple, SideKnativeNoToken: report.Green,
}

// figure draws all samples above the waterfall of Wangell and the floor, if there is one.
func figure(cold map[string][]float64, phases []report.Phase) report.Figure {
	return func(c draw.Canvas) error {
		title := "Cold requests on Kubernetes"
		if w, k := report.Mean(cold[SideWangell]), report.Mean(cold[SideKnative]); w > 0 && k > 0 {
			title += fmt.Sprintf(": mean %.0f ms with Wangell, %.0f ms with Knative", w, k)
		}
		p := report.NewPlot(title, "time to the end of the answer (ms)")
		var shown []string
		greatest := 1.0
		for _, side := range AllSides {
			if len(cold[side]) > 0 {
				greatest, shown = max(greatest, slices.Max(cold[side])), append(shown, side)
			}
		}
		report.XFromZero(p, 1.04*greatest)
		names := make([]string, len(shown))
		for i, side := range shown {
			names[i] = sideTitle[side]
			p.Add(report.Strip{Samples: cold[side], Y: report.RowAt(i, len(shown)), Color: sideColor[side]})
		}
		report.NamedRows(p, names)
		if len(phases) == 0 {
			p.Draw(c)
			return nil
		}
		report.Stack(c, 0.48, p, report.WaterfallPlot(phases,
			"Where the time goes: medians of the phases, Wangell blue and floor orange"))
		return nil
	}
}
