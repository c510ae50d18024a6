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

	"wangell.loutres.me/internal/lab"
	"wangell.loutres.me/internal/lab/cluster"
	"wangell.loutres.me/internal/lab/load"
	"wangell.loutres.me/internal/lab/proxy"
	"wangell.loutres.me/internal/lab/report"
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

// sampler takes the samples.
type sampler struct {
	*proxy.Cluster
	params  Params
	out     lab.Output
	image   string                     // of the load server and of client pods
	targets map[string]*cluster.Target // by mode; the modes of kube-proxy share one
	pods    *cluster.Vantage
	lan     *cluster.Vantage
	from    *cluster.Vantage // the one of Params.Clients
	samples Samples
	turns   int // so far
}

func newSampler(ctx context.Context, p Params, out lab.Output) (_ *sampler, err error) {
	c, err := proxy.Open(ctx, p.Cluster)
	if err != nil {
		return nil, err
	}
	s := &sampler{Cluster: c, params: p, out: out}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if s.image, err = c.PushHello(ctx); err != nil {
		return nil, err
	}
	if s.targets, err = s.makeTargets(ctx, "load", cluster.Server{Image: s.image, Stop: cluster.StopNow}); err != nil {
		return nil, err
	}
	if s.pods, err = c.PodClients(ctx, s.image, rateHosts); err != nil {
		return nil, err
	}
	if s.lan, err = c.LANClients(rateHosts); err != nil {
		return nil, err
	}
	s.from = s.pods
	if p.Clients == cluster.VantageLAN {
		s.from = s.lan
	}
	return s, nil
}

// makeTargets makes the services of the measured modes.
func (s *sampler) makeTargets(
	ctx context.Context, name string, server cluster.Server,
) (map[string]*cluster.Target, error) {
	targets := map[string]*cluster.Target{}
	var proxied *cluster.Target
	for _, mode := range s.params.Modes {
		var err error
		switch {
		case mode == proxy.ModeWangell:
			targets[mode], err = s.WangellTarget(ctx, name+"-wangell", server, mostReplicas)
		case proxied == nil:
			proxied, err = s.Target(ctx, name+"-proxy", server)
			fallthrough
		default:
			targets[mode] = proxied
		}
		if err != nil {
			return nil, err
		}
	}
	targets[proxy.ModeDirect] = targets[s.params.Modes[0]]
	return targets, nil
}

// enter makes a mode the measured one.
func (s *sampler) enter(ctx context.Context, mode string, from *cluster.Vantage) (*cluster.Target, error) {
	if err := s.SetMode(ctx, mode); err != nil {
		return nil, err
	}
	t := s.targets[mode]
	return t, t.Serves(ctx, from)
}

// scaleAll scales every target to n pods.
func (s *sampler) scaleAll(ctx context.Context, n int) error {
	scaled := map[*cluster.Target]bool{}
	for _, mode := range s.params.Modes {
		t := s.targets[mode]
		if scaled[t] {
			continue
		}
		scaled[t] = true
		if err := t.ScaleTo(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// nextTurn returns the modes in the order of the next repetition. It begins with the mode that the last one ended with.
func (s *sampler) nextTurn() []string {
	s.turns++
	return proxy.InTurn(s.params.Modes, s.turns-1)
}

// ab does one run of ab in a mode.
func (s *sampler) ab(ctx context.Context, mode string, requests int) (load.Result, error) {
	t, err := s.enter(ctx, mode, s.from)
	if err != nil {
		return load.Result{}, err
	}
	return load.AbRequests(ctx, s.from.Hosts[0], s.from.Address(t), requests, concurrency)
}
