// SPDX-License-Identifier: Apache-2.0

package coldkube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/knative"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
)

const (
	// maxPause is the longest pause before a cold request. Pauses are random: otherwise Knative's requests lock onto the
	// period in which kubelet publishes pod status.
	maxPause = time.Second
	// warmRequests is the number of warm requests after each cold one.
	warmRequests = 10
)

// Run implements lab.Params. It needs root. A lost request is a sample with an error; the report counts it, and comes
// with an error.
func (p *Params) Run(ctx context.Context, out lab.Output) (_ []*report.Report, err error) {
	params := p.withDefaults()
	c, err := cluster.Open(ctx, params.Cluster, knative.Resource)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := c.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
		}
	}()
	s := &sampler{
		params: params, cluster: c, random: rand.New(rand.NewPCG(params.Seed, 0)), samples: Samples{},
	}
	loadBefore := report.LoadAverage()
	if err := s.run(ctx, out); err != nil {
		return nil, err
	}
	r := newReport(s.samples)
	r.Time = time.Now()
	if r.Versions, err = c.Versions(); err != nil {
		return nil, err
	}
	r.Params = map[string]any{
		"nodes": len(c.File.Nodes), "CNI": c.File.CNI, "kube-proxy mode": c.File.ProxyMode,
		"requests": params.Requests, "uncounted rounds before": 1, "sides": strings.Join(params.Sides, ", "),
		"seed": params.Seed, "warm requests after each cold one": warmRequests,
		"longest random pause before a cold request (ms)": report.Milliseconds(maxPause),
		"time without any pod before a round (ms)":        report.Milliseconds(cluster.QuietTime),
		"floor: pause between attempts (ms)":              report.Milliseconds(probe.PollInterval),
		"load average at begin":                           loadBefore, "load average at end": report.LoadAverage(),
	}
	if source := s.floorSource(); source != "" {
		r.Params["floor: pod template"] = source
	}
	if params.measuresKnative() {
		settings, versions, err := knative.Settings(ctx, c)
		if err != nil {
			return nil, err
		}
		r.Params["knative: "+knative.Window] = windowValue
		maps.Copy(r.Params, settings)
		maps.Copy(r.Versions, versions)
	}
	if lost := r.Summary.Get("lost"); lost > 0 {
		err = fmt.Errorf("%.0f requests were lost: their errors are in %s.json", lost, reportName)
	}
	return []*report.Report{r}, err
}

// sampler takes the samples.
type sampler struct {
	params  Params
	cluster *cluster.Cluster
	random  *rand.Rand
	sides   []side
	samples Samples
}

// run takes rounds of samples, one of each side. The first round is not counted.
func (s *sampler) run(ctx context.Context, out lab.Output) error {
	image, err := s.cluster.PushHello(ctx)
	if err != nil {
		return err
	}
	s.sides = makeSides(s.cluster, image, s.params.Sides)
	for _, one := range s.sides {
		if err := one.prepare(ctx); err != nil {
			return fmt.Errorf("%s: %w", one.name(), err)
		}
	}
	for i := range s.params.Requests + 1 {
		if err := s.cluster.UntilZero(ctx); err != nil {
			return err
		}
		for _, one := range roundOrder(s.sides, i) {
			sample, err := s.sample(ctx, one)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", one.name(), i, err)
			}
			if i > 0 {
				s.samples[one.name()] = append(s.samples[one.name()], sample)
			}
		}
		if i > 0 {
			out.Progress(i, s.params.Requests)
		}
	}
	return nil
}

// floorSource describes the floor's pod template, if the floor is measured.
func (s *sampler) floorSource() string {
	for _, one := range s.sides {
		if f, ok := one.(*floorSide); ok {
			return f.source
		}
	}
	return ""
}

// roundOrder returns the order of a round. The two Knative sides change places from round to round, because the second
// one finds the first one's idle pod on the node.
func roundOrder(sides []side, round int) []side {
	order := slices.Clone(sides)
	n := len(order)
	if round%2 == 1 && n >= 2 && order[n-1].name() == SideKnativeNoToken && order[n-2].name() == SideKnative {
		order[n-1], order[n-2] = order[n-2], order[n-1]
	}
	return order
}

// sample does one cold request and the warm ones after it. A lost request is a sample; an error ends the experiment.
func (s *sampler) sample(ctx context.Context, of side) (Sample, error) {
	pause := time.Duration(s.random.Int64N(int64(maxPause)))
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return Sample{}, ctx.Err()
	}
	pods, err := s.cluster.Pods(ctx, "")
	if err != nil {
		return Sample{}, err
	}
	if err := checkCold(pods, of.name()); err != nil {
		return Sample{}, err
	}
	sample, err := of.cold(ctx)
	if err != nil {
		return sample, err
	}
	if sample.Error == "" {
		if err := s.untilReady(ctx, of, &sample); err != nil {
			return sample, err
		}
		if err := warm(ctx, of, &sample); err != nil {
			return sample, err
		}
	}
	return sample, of.rest(ctx)
}

// warm does the warm requests that follow a cold one.
func warm(ctx context.Context, of side, sample *Sample) error {
	for range warmRequests {
		t, err := of.warm(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			sample.WarmErrors = append(sample.WarmErrors, err.Error())
			continue
		}
		sample.Warm = append(sample.Warm, report.Milliseconds(t.Done))
	}
	return nil
}

// untilReady waits until the pod that answered is Ready, so that its start does not disturb the next sample, and
// records the pod.
func (s *sampler) untilReady(ctx context.Context, of side, sample *Sample) error {
	return cluster.Until(ctx, cluster.ReadyTimeout, func() error {
		pods, err := s.cluster.Pods(ctx, "")
		if err != nil {
			return err
		}
		own := podsOf(pods, of.name())
		if len(own) == 0 {
			return errors.New("the request was answered, but there is no pod")
		}
		if !cluster.Ready(&own[0]) {
			return fmt.Errorf("pod %s answered but is not Ready", own[0].Name)
		}
		sample.Pod, sample.Node = own[0].Name, own[0].Spec.NodeName
		return nil
	})
}
