// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"context"
	"errors"
	"time"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/load"
	"wangell.loutres.me/lab/proxy"
)

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
	return t, from.UntilServed(ctx, t)
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

// autoscaled calls f while the target of a mode is autoscaled, starting from one pod.
func (s *sampler) autoscaled(
	ctx context.Context, mode string, targetCPU float64, f func(begin time.Time) error,
) ([]Step, error) {
	// First the pods: enter waits until the mode's own state follows them.
	if err := s.targets[mode].ScaleTo(ctx, 1); err != nil {
		return nil, err
	}
	t, err := s.enter(ctx, mode, s.from)
	if err != nil {
		return nil, err
	}
	a := &autoscaler{target: t, policy: cpuPolicy(targetCPU, s.params.Interval), interval: s.params.Interval,
		begin: time.Now()}
	stop := a.start(ctx, 1)
	err = f(a.begin)
	steps, stopErr := stop()
	if err == nil {
		err = stopErr
	}
	return steps, err
}
