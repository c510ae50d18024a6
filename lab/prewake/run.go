// SPDX-License-Identifier: Apache-2.0

package prewake

import (
	"context"
	"math/rand/v2"
	"time"

	"wangell.loutres.me/internal/decide/forecast"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

// minutes are the fixed times of idleness that are compared, each alone and beside a forecast. Four hours is what the
// paper falls back to.
var minutes = []int{5, 10, 20, 60, 240}

// Run implements lab.Params.
func (p *Params) Run(ctx context.Context, out lab.Output) ([]*report.Report, error) {
	params := p.withDefaults()
	samples, err := measure(ctx, params, out)
	if err != nil {
		return nil, err
	}
	r := newReport(samples)
	r.Time, r.Versions = time.Now(), report.MachineVersions()
	r.Params = map[string]any{
		"services": params.Services, "days": params.Days, "seed": params.Seed, "quick": params.Quick,
	}
	return []*report.Report{r}, nil
}

// measure generates the services and replays each with every policy.
func measure(ctx context.Context, p Params, out lab.Output) (Samples, error) {
	s := Samples{Days: p.Days}
	for _, predict := range []bool{false, true} {
		for _, m := range minutes {
			policy := Policy{Predict: predict, Minutes: m}
			if predict {
				policy.Bases = map[string]int{}
			}
			s.Policies = append(s.Policies, policy)
		}
	}
	span := time.Duration(p.Days) * 24 * time.Hour
	for i := range p.Services {
		if err := ctx.Err(); err != nil {
			return s, err
		}
		uses, mb := service(rand.New(rand.NewPCG(p.Seed, uint64(i))), span)
		s.Services = append(s.Services, Service{Uses: len(uses), Variation: variation(uses), Memory: mb})
		for k := range s.Policies {
			policy := &s.Policies[k]
			cold, idle := replay(uses, span, policy)
			policy.Cold = append(policy.Cold, cold)
			policy.Idle += mb * idle.Seconds()
		}
		out.Progress(i+1, p.Services)
	}
	return s, nil
}

// variation returns the coefficient of variation of the times between uses; -1 if there are too few.
func variation(uses []time.Duration) float64 {
	if len(uses) < 3 {
		return -1
	}
	gaps := make([]float64, len(uses)-1)
	for i := range gaps {
		gaps[i] = (uses[i+1] - uses[i]).Seconds()
	}
	return report.StdDev(gaps) / report.Mean(gaps)
}

// replay counts the cold wakes of a service, and the time for which a pod was ready without use. As in the paper, a use
// takes no time: only idleness counts.
func replay(uses []time.Duration, span time.Duration, p *Policy) (cold int, idle time.Duration) {
	fixed := time.Duration(p.Minutes) * time.Minute
	next := forecast.Forecast{Keep: fixed}
	var h forecast.History
	var last time.Duration
	begin := time.Unix(0, 0)
	for i, at := range uses {
		if i == 0 || !next.Warm(at-last) {
			cold++
		}
		if i > 0 {
			idle += next.Spent(at - last)
		}
		if ended := h.Used(begin.Add(at)); ended && p.Predict {
			next = h.Next(fixed)
		}
		if p.Predict {
			p.Bases[string(next.Basis)]++
		}
		last = at
	}
	if len(uses) > 0 {
		idle += next.Spent(span - last)
	}
	return cold, idle
}
