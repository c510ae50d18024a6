// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/load"
	"wangell.loutres.me/lab/report"
)

// paramRequests is the name of a parameter that texts of the report depend on.
const paramRequests = "requests of a run of ab"

// Run implements lab.Params. It needs root. The first report has the whole summary and the plot of the fixed load; each
// other one has the plot of another part.
func (p *Params) Run(ctx context.Context, out lab.Output) (_ []*report.Report, err error) {
	params := p.withDefaults()
	loadBefore := report.LoadAverage()
	s, err := newSampler(ctx, params, out)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := s.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
		}
	}()
	parts := map[string]func(context.Context) error{PartFixed: s.fixed, PartRates: s.rates, PartReplicas: s.replicas,
		PartAlternating: s.alternating, PartFlap: s.flap}
	for _, part := range AllParts {
		if !slices.Contains(params.Parts, part) {
			continue
		}
		if err := parts[part](ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", part, err)
		}
	}
	versions, err := s.Versions()
	if err != nil {
		return nil, err
	}
	maps.Copy(versions, load.Versions())
	settings := map[string]any{
		"nodes": len(s.File.Nodes), "CNI": s.File.CNI, "modes": strings.Join(params.Modes, ", "),
		"parts": strings.Join(params.Parts, ", "), "quick": params.Quick, "clients": params.Clients,
		paramRequests: params.Requests, "repetitions": params.Repetitions, "connections at a time": concurrency,
		"replicas at fixed load": fixedReplicas, "load server: cpu request of a pod": cluster.ServerCPU,
		"autoscaler: interval (s)": params.Interval.Seconds(), "autoscaler: replicas": "1 to 3",
		"autoscaler: target (cores for each pod)":    targetCPU,
		"alternating: server's time per answer (ms)": report.Milliseconds(params.AlternatingDelay),
		"alternating: requests at 100":               params.alternatingRequests(),
		"alternating: target (cores for each pod)":   alternatingCPU,
		"alternating: requests at 1":                 params.alternatingRequests() / lightShare,
		"flap: time of each (s)":                     params.FlapTime.Seconds(),
		"load average at begin":                      loadBefore, "load average at end": report.LoadAverage(),
	}
	reports := newReports(planOf(s.samples, params.Requests), s.samples)
	for _, r := range reports {
		r.Time, r.Params, r.Versions = time.Now(), settings, versions
	}
	return reports, nil
}
