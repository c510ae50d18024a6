// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/internal/lab"
	"wangell.loutres.me/internal/lab/cluster"
	"wangell.loutres.me/internal/lab/knative"
	"wangell.loutres.me/internal/lab/proxy"
	"wangell.loutres.me/internal/lab/report"
)

// Run implements lab.Params. It needs root.
func (p *Params) Run(ctx context.Context, out lab.Output) (_ []*report.Report, err error) {
	params := p.withDefaults()
	loadBefore := report.LoadAverage()
	c, err := proxy.Open(ctx, params.Cluster, knative.Resource)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := c.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
		}
	}()
	modes, missing, err := withoutMissing(ctx, c.Cluster, params.Modes)
	if err != nil {
		return nil, err
	}
	if missing != nil {
		if len(p.Modes) > 0 {
			return nil, fmt.Errorf("--modes: %w", missing)
		}
		out.Log("left out: %v", missing)
	}
	params.Modes = modes
	samples, err := measure(ctx, c, params, out)
	if err != nil {
		return nil, err
	}
	r := newReport(samples)
	r.Time = time.Now()
	if r.Versions, err = c.Versions(); err != nil {
		return nil, err
	}
	r.Params = map[string]any{
		"nodes": len(c.File.Nodes), "CNI": c.File.CNI, "pods": replicas, "modes": strings.Join(params.Modes, ", "),
		"quick": params.Quick, "time of each pattern (s)": params.Time.Seconds(), "rounds": params.Rounds,
		"load average at begin": loadBefore, "load average at end": report.LoadAverage(),
	}
	if slices.Contains(params.Modes, proxy.ModeKnative) {
		settings, versions, err := knative.Settings(ctx, c.Cluster)
		if err != nil {
			return nil, err
		}
		maps.Copy(r.Params, settings)
		maps.Copy(r.Versions, versions)
	}
	return []*report.Report{r}, nil
}

// measure takes a sample of each pattern in each mode, the modes in turn; then of some with a server that works.
func measure(ctx context.Context, c *proxy.Cluster, p Params, out lab.Output) ([]Sample, error) {
	image, err := c.PushHello(ctx)
	if err != nil {
		return nil, err
	}
	from, err := c.PodClients(ctx, image, 1)
	if err != nil {
		return nil, err
	}
	m := measurement{cluster: c, from: from, rounds: p.Rounds, length: p.Time, out: out}
	server := cluster.Server{Image: image, Stop: cluster.StopNow}
	if err := m.patterns(ctx, p.Modes, p.selected(""), "", server); err != nil {
		return nil, err
	}
	server.Work = work
	modes := slices.DeleteFunc(slices.Clone(workModes), func(mode string) bool { return !slices.Contains(p.Modes, mode) })
	return m.samples, m.patterns(ctx, modes, p.selected(workPrefix), "-work", server)
}

// measurement is what samples have in common.
type measurement struct {
	cluster *proxy.Cluster
	from    *cluster.Vantage
	rounds  int
	length  time.Duration
	out     lab.Output
	samples []Sample
}

// patterns takes a sample of each pattern in each mode and round, the modes in turn, and then removes the pods.
func (m *measurement) patterns(
	ctx context.Context, modes []string, patterns []Pattern, suffix string, server cluster.Server,
) error {
	if len(patterns) == 0 {
		return nil
	}
	targets := map[string]target{}
	for _, mode := range modes {
		var err error
		if targets[mode], err = makeTarget(ctx, m.cluster, mode, suffix, server); err != nil {
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
			s.Mode, s.Work = mode, float64(server.Work)/float64(time.Millisecond)
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
	if err := m.from.UntilServed(ctx, t.Target); err != nil {
		return Sample{}, err
	}
	pods, err := t.Pods(ctx)
	if err != nil {
		return Sample{}, err
	}
	service := endpoint{
		dial: m.from.Hosts[0].Namespace.Dialer().DialContext, address: m.from.Address(t.Target), host: t.Host,
	}
	for i := range pods {
		service.pods = append(service.pods, pods[i].Name)
	}
	if !slices.Contains(requestModes, mode) {
		s := runPattern(ctx, p, service, m.length)
		return s, ctx.Err()
	}
	if err := untilFronted(ctx, service); err != nil {
		return Sample{}, err
	}
	before, err := m.envoyUse(ctx, mode)
	if err != nil {
		return Sample{}, err
	}
	s := runPattern(ctx, p, service, m.length)
	after, err := m.envoyUse(ctx, mode)
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
				return fmt.Errorf("requests of one connection do not reach all pods: %v: does the chart have "+
					"requests.enabled?", s.Requests)
			}
		}
		return nil
	})
}

// envoyUse returns what the Envoys of a mode have used so far.
func (m *measurement) envoyUse(ctx context.Context, mode string) (EnvoyUse, error) {
	var use EnvoyUse
	pods, err := envoys(ctx, m.cluster.Cluster, mode)
	if err != nil {
		return use, err
	}
	for i := range pods {
		cpu, err := m.cluster.PodCPU(&pods[i])
		if err != nil {
			return use, err
		}
		memory, err := m.cluster.PodMemory(&pods[i])
		if err != nil {
			return use, err
		}
		use.CPU += cpu.Seconds()
		use.Memory = max(use.Memory, float64(memory)/(1<<20))
	}
	return use, nil
}
