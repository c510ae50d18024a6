// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"context"
	_ "embed" // the source of the server
	"slices"
	"time"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/load"
)

//go:embed server/main.go
var serverSource []byte

// alternating runs heavy and light load in turn while the number of pods follows the load.
func (s *sampler) alternating(ctx context.Context) error {
	restore, err := s.useDelayedServer(ctx)
	if err != nil {
		return err
	}
	defer restore()
	for _, mode := range s.nextTurn() {
		result := AlternatingMode{Mode: mode}
		result.Steps, err = s.autoscaled(ctx, mode, alternatingCPU, func(begin time.Time) error {
			for i := range 2 * s.params.Repetitions {
				run, err := s.alternatingRun(ctx, mode, i, begin)
				if err != nil {
					return err
				}
				result.Runs = append(result.Runs, run)
				if run.Aborted != "" {
					s.pause(ctx, abortPause*s.params.Interval)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		s.samples.Alternating = append(s.samples.Alternating, result)
	}
	slices.SortFunc(s.samples.Alternating, func(a, b AlternatingMode) int {
		return slices.Index(s.params.Modes, a.Mode) - slices.Index(s.params.Modes, b.Mode)
	})
	return nil
}

// abortPause is the pause after a run that broke off, in intervals of the autoscaler. Without it, the next run would
// start, and break off too, while kube-proxy still routes to the pods that are gone.
const abortPause = 2

// pause waits for a time, or until ctx ends.
func (s *sampler) pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// useDelayedServer makes services whose server waits before each answer the measured ones. Without the delay, one
// client on the same machine uses nearly as much processor time as a hundred: they all wait for the processor alone.
func (s *sampler) useDelayedServer(ctx context.Context) (restore func(), err error) {
	img, err := image.Program(ctx, serverSource, image.Spec{ExposedPorts: []string{"8080/tcp"}, User: "65532:65532"})
	if err != nil {
		return nil, err
	}
	reference, err := s.Push(ctx, img, "delayed")
	if err != nil {
		return nil, err
	}
	server := cluster.Server{Image: reference, Stop: cluster.StopNow, Delay: s.params.AlternatingDelay}
	targets, err := s.makeTargets(ctx, "delayed", server)
	if err != nil {
		return nil, err
	}
	before := s.targets
	s.targets = targets
	return func() { s.targets = before }, nil
}

// alternatingRun does run i: even ones are heavy, odd ones light.
func (s *sampler) alternatingRun(ctx context.Context, mode string, i int, begin time.Time) (AlternatingRun, error) {
	requests, connections := s.params.alternatingRequests(), concurrency
	if i%2 == 1 {
		requests, connections = requests/lightShare, 1
	}
	t := s.targets[mode]
	run := AlternatingRun{At: time.Since(begin).Seconds(), Concurrency: connections}
	var err error
	run.Result, err = load.AbRequests(ctx, s.from.Hosts[0], s.from.Address(t), requests, connections)
	if err != nil {
		return run, err
	}
	run.End = time.Since(begin).Seconds()
	s.out.Log("alternating load, %d of %d: %s: %.2f s, %d failed %s", i+1, 2*s.params.Repetitions, mode, run.End-run.At,
		run.Failed, run.Aborted)
	return run, nil
}
