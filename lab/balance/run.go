// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/proxy"
	"wangell.loutres.me/lab/report"
)

// Run implements lab.Params. It needs root.
func (p *Params) Run(ctx context.Context, out lab.Output) (_ []*report.Report, err error) {
	params := p.withDefaults()
	loadBefore := report.LoadAverage()
	var s site
	if params.Machine {
		s, err = openMachine(ctx, params)
	} else {
		s, err = openCluster(ctx, &params, out)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := s.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
		}
	}()
	samples, err := measure(ctx, s, params, out)
	if err != nil {
		return nil, err
	}
	r := newReport(samples, params.Machine)
	r.Time = time.Now()
	r.Params = map[string]any{
		"pods": replicas, "modes": strings.Join(params.Modes, ", "), "quick": params.Quick,
		"time of each pattern (s)": params.Time.Seconds(), "rounds": params.Rounds,
		"load average at begin": loadBefore, "load average at end": report.LoadAverage(),
	}
	if r.Versions, err = s.describe(ctx, r.Params); err != nil {
		return nil, err
	}
	return []*report.Report{r}, nil
}

// measure takes a sample of each pattern in each mode, the modes in turn; then of some with a server that works.
func measure(ctx context.Context, s site, p Params, out lab.Output) ([]Sample, error) {
	m := measurement{site: s, rounds: p.Rounds, length: p.Time, out: out}
	if err := m.patterns(ctx, p.Modes, p.selected(""), 0); err != nil {
		return nil, err
	}
	modes := slices.DeleteFunc(slices.Clone(workModes), func(mode string) bool { return !slices.Contains(p.Modes, mode) })
	return m.samples, m.patterns(ctx, modes, p.selected(workPrefix), work)
}

// measurement is what samples have in common.
type measurement struct {
	site    site
	rounds  int
	length  time.Duration
	out     lab.Output
	samples []Sample
}

// patterns takes a sample of each pattern in each mode and round, the modes in turn, and then removes the pods.
func (m *measurement) patterns(ctx context.Context, modes []string, patterns []Pattern, work time.Duration) error {
	if len(patterns) == 0 {
		return nil
	}
	targets := map[string]target{}
	for _, mode := range modes {
		var err error
		if targets[mode], err = m.site.target(ctx, mode, work); err != nil {
			return err
		}
	}
	for i := range m.rounds * len(patterns) {
		round, j := i/len(patterns), i%len(patterns)
		pattern := patterns[j]
		for _, mode := range proxy.InTurn(modes, round+j) {
			s, err := m.sample(ctx, targets[mode], mode, pattern)
			if err != nil {
				return err
			}
			s.Mode, s.Work = mode, float64(work)/float64(time.Millisecond)
			m.out.Log("%s, %g ms of work: %s: %.0f requests per second, busiest over mean %.2f, p50 %.2f ms, %d failed",
				pattern.Name, s.Work, mode, s.perSecond(), busiest(s.Requests), s.P50, s.Failed)
			m.samples = append(m.samples, s)
		}
	}
	for _, mode := range modes {
		if err := targets[mode].remove(ctx); err != nil {
			return err
		}
	}
	return nil
}

// sample runs one pattern against the service of a mode.
func (m *measurement) sample(ctx context.Context, t target, mode string, p Pattern) (Sample, error) {
	service, err := t.endpoint(ctx)
	if err != nil {
		return Sample{}, err
	}
	if !slices.Contains(requestModes, mode) {
		s := runPattern(ctx, p, service, m.length)
		return s, ctx.Err()
	}
	if err := untilFronted(ctx, service); err != nil {
		return Sample{}, err
	}
	before, err := t.envoy(ctx)
	if err != nil {
		return Sample{}, err
	}
	s := runPattern(ctx, p, service, m.length)
	after, err := t.envoy(ctx)
	s.Envoy = &EnvoyUse{CPU: after.CPU - before.CPU, Memory: after.Memory}
	return s, errors.Join(err, ctx.Err())
}

// untilFronted waits until Envoy chooses the pods: then the requests of one connection reach all of them.
func untilFronted(ctx context.Context, service endpoint) error {
	one := Pattern{Clients: 1, Threads: 1, OwnConnection: true}
	return cluster.Until(ctx, cluster.ReadyTimeout, func() error {
		s := runPattern(ctx, one, service, 100*time.Millisecond)
		for _, n := range s.Requests {
			if n == 0 {
				return fmt.Errorf("requests of one connection do not reach all pods: %v: does Envoy run? On a cluster, the chart "+
					"needs requests.enabled", s.Requests)
			}
		}
		return nil
	})
}
