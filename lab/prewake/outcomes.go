// SPDX-License-Identifier: Apache-2.0

package prewake

import (
	"fmt"
	"math"

	"wangell.loutres.me/lab/report"
)

// outcome is what a policy comes to.
type outcome struct {
	Policy
	name     string
	cold     int     // wakes of all services
	uses     int     // of all services
	quartile float64 // third quartile of the share of cold uses of a service, in percent
	memory   float64 // in percent of the memory with fixed 10 minutes
}

func outcomes(s Samples) []outcome {
	reference := math.NaN()
	for _, p := range s.Policies {
		if !p.Predict && p.Minutes == 10 {
			reference = p.Idle
		}
	}
	var list []outcome
	for _, p := range s.Policies {
		o := outcome{Policy: p, name: fmt.Sprintf("fixed %d min", p.Minutes), memory: 100 * p.Idle / reference}
		if p.Predict {
			o.name = fmt.Sprintf("predict, else %d min", p.Minutes)
		}
		var shares []float64
		for i, cold := range p.Cold {
			o.cold += cold
			if uses := s.Services[i].Uses; uses > 0 {
				o.uses += uses
				shares = append(shares, 100*float64(cold)/float64(uses))
			}
		}
		o.quartile = report.Percentile(shares, 75)
		list = append(list, o)
	}
	return list
}
