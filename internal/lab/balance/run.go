// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"wangell.loutres.me/internal/lab"
	"wangell.loutres.me/internal/lab/cluster"
	"wangell.loutres.me/internal/lab/proxy"
	"wangell.loutres.me/internal/lab/report"
)

// Run implements lab.Params. It needs root.
func (p *Params) Run(ctx context.Context, out lab.Output) (_ []*report.Report, err error) {
	params := p.withDefaults()
	loadBefore := report.LoadAverage()
	c, err := proxy.Open(ctx, params.Cluster)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := c.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
		}
	}()
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
		"quick": params.Quick, "time of each pattern (s)": params.Time.Seconds(),
		"load average at begin": loadBefore, "load average at end": report.LoadAverage(),
	}
	return []*report.Report{r}, nil
}

// makeTarget makes the service of a mode, with all its pods.
func makeTarget(ctx context.Context, c *proxy.Cluster, mode string, server cluster.Server) (*cluster.Target, error) {
	var t *cluster.Target
	err := c.SetMode(ctx, mode)
	switch {
	case err != nil:
	case mode == proxy.ModeWangell:
		t, err = c.WangellTarget(ctx, "balance-wangell", server, replicas)
	default:
		t, err = c.Target(ctx, "balance-proxy", server)
	}
	if err != nil {
		return nil, err
	}
	return t, t.ScaleTo(ctx, replicas)
}

// measure takes a sample of each pattern in each mode, the modes in turn.
func measure(ctx context.Context, c *proxy.Cluster, p Params, out lab.Output) ([]Sample, error) {
	image, err := c.PushHello(ctx)
	if err != nil {
		return nil, err
	}
	targets := map[string]*cluster.Target{}
	for _, mode := range p.Modes {
		server := cluster.Server{Image: image, Stop: cluster.StopNow}
		if targets[mode], err = makeTarget(ctx, c, mode, server); err != nil {
			return nil, err
		}
	}
	from, err := c.PodClients(ctx, image, 1)
	if err != nil {
		return nil, err
	}
	var samples []Sample
	for i, pattern := range Patterns {
		for _, mode := range proxy.InTurn(p.Modes, i) {
			s, err := sample(ctx, targets[mode], from, pattern, p.Time)
			if err != nil {
				return nil, err
			}
			s.Mode = mode
			out.Log("%s: %s: %.0f requests per second, busiest over mean %.2f, %d failed", pattern.Name, mode,
				s.perSecond(), busiest(s.Requests), s.Failed)
			samples = append(samples, s)
		}
	}
	return samples, nil
}

// sample runs one pattern against a target.
func sample(
	ctx context.Context, t *cluster.Target, from *cluster.Vantage, p Pattern, length time.Duration,
) (Sample, error) {
	if err := from.UntilServed(ctx, t); err != nil {
		return Sample{}, err
	}
	pods, err := t.Pods(ctx)
	if err != nil {
		return Sample{}, err
	}
	names := make([]string, len(pods))
	for i := range pods {
		names[i] = pods[i].Name
	}
	s := runPattern(ctx, p, from.Hosts[0].Namespace.Dialer().DialContext, from.Address(t), names, length)
	return s, ctx.Err()
}
