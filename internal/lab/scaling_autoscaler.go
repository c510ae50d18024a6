// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"math"
	"time"

	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/scale"
)

// Step is a moment of an autoscaled service.
type Step struct {
	// At is in seconds since the begin.
	At float64 `json:"at_s"`
	// Wanted is how many pods the autoscaler has asked for, Ready how many serve, Others how many start or end.
	Wanted int `json:"wanted"`
	Ready  int `json:"ready"`
	Others int `json:"others"`
	// CPU is the mean use of a core for each pod since the last look of the autoscaler; only at its looks.
	CPU *float64 `json:"cpu,omitempty"`
	// Why is the autoscaler's reason, at its looks.
	Why string `json:"why,omitempty"`
}

// autoscaler scales any target by the processor time of its pods. The three modes are scaled by the same rule from the
// same data.
type autoscaler struct {
	target   *target
	policy   scale.Policy
	interval time.Duration
	begin    time.Time

	steps []Step
}

// watchEvery is how often the pods are counted.
const watchEvery = 500 * time.Millisecond

// cpuPolicy is the rule of the experiment: 1 to 3 pods, in cores for each pod.
func cpuPolicy(target float64, interval time.Duration) scale.Policy {
	pace := scale.Direction{Interval: interval - interval/10} // a look that is a little early counts
	return scale.Policy{Metric: "cpu", Target: target, Min: 1, Max: 3, Out: pace, In: pace}
}

// start scales from a number of pods on until the function it returns is called, which tells what failed and the steps.
func (a *autoscaler) start(ctx context.Context, replicas int) (stop func() ([]Step, error)) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- a.run(ctx, replicas) }()
	return func() ([]Step, error) {
		cancel()
		err := <-ended
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		return a.steps, err
	}
}

func (a *autoscaler) run(ctx context.Context, wanted int) error {
	var meter cpuMeter
	var scaler scale.Scaler
	look := time.Now()
	for tick := time.NewTicker(watchEvery); ; {
		pods, err := a.target.pods(ctx)
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		now := time.Now()
		step := Step{At: now.Sub(a.begin).Seconds(), Wanted: wanted}
		step.Ready, step.Others = readyPods(pods)
		if !now.Before(look) {
			look = look.Add(a.interval)
			used := map[string]time.Duration{}
			for i := range pods {
				if !ready(&pods[i]) {
					continue
				}
				if t, err := a.target.cluster.podCPU(&pods[i]); err == nil { // else it has just ended
					used[string(pods[i].UID)] = t
				}
			}
			value := math.NaN()
			if cores, ok := meter.observe(now, used); ok {
				value, step.CPU = cores, &cores
			}
			d := scaler.Decide(a.policy, scale.Observation{At: monotime.Now(), Replicas: wanted, Value: value})
			step.Why = d.String()
			if d.Replicas != wanted {
				if err := a.target.scale(ctx, d.Replicas); err != nil {
					return errors.Join(ctx.Err(), err)
				}
				wanted, step.Wanted = d.Replicas, d.Replicas
			}
		}
		a.steps = append(a.steps, step)
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return ctx.Err()
		}
	}
}
