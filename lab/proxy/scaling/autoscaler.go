// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"context"
	"errors"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/scale"
	"wangell.loutres.me/lab/cluster"
)

// autoscaler scales any target by the processor time of its pods. All modes are scaled by the same rule from the same
// data.
type autoscaler struct {
	target   *cluster.Target
	policy   scale.Policy
	interval time.Duration
	begin    time.Time

	meter  cpuMeter
	scaler scale.Scaler
	next   time.Time // of the next decision
	wanted int
	steps  []Step
}

// countInterval is the time between two counts of the pods.
const countInterval = 500 * time.Millisecond

// cpuPolicy returns the rule of the experiment: 1 to 3 pods; target is in cores per pod.
func cpuPolicy(target float64, interval time.Duration) scale.Policy {
	pace := scale.Direction{Interval: interval - interval/10} // tolerates a decision that is a little early
	return scale.Policy{Metric: "cpu", Target: target, Min: 1, Max: 3, Out: pace, In: pace}
}

// start begins to scale a target that has a number of pods. The caller must call stop, which returns the steps.
func (a *autoscaler) start(ctx context.Context, replicas int) (stop func() ([]Step, error)) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	a.wanted, a.next = replicas, time.Now()
	go func() { ended <- a.run(ctx) }()
	return func() ([]Step, error) {
		cancel()
		err := <-ended
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		return a.steps, err
	}
}

func (a *autoscaler) run(ctx context.Context) error {
	tick := time.NewTicker(countInterval)
	defer tick.Stop()
	for {
		if err := a.step(ctx); err != nil {
			return errors.Join(ctx.Err(), err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// step counts the pods, and decides if it is time to.
func (a *autoscaler) step(ctx context.Context) error {
	pods, err := a.target.Pods(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	step := Step{At: now.Sub(a.begin).Seconds()}
	step.Ready, step.Others = cluster.CountReady(pods)
	if !now.Before(a.next) {
		a.next = a.next.Add(a.interval)
		if err := a.decide(ctx, now, pods, &step); err != nil {
			return err
		}
	}
	step.Wanted = a.wanted
	a.steps = append(a.steps, step)
	return nil
}

func (a *autoscaler) decide(ctx context.Context, now time.Time, pods []corev1.Pod, step *Step) error {
	used := map[string]time.Duration{}
	for i := range pods {
		if !cluster.Ready(&pods[i]) {
			continue
		}
		if t, err := a.target.Cluster.PodCPU(&pods[i]); err == nil { // an error: it has just ended
			used[string(pods[i].UID)] = t
		}
	}
	value := math.NaN()
	if cores, ok := a.meter.observe(now, used); ok {
		value, step.CPU = cores, &cores
	}
	d := a.scaler.Decide(a.policy, scale.Observation{At: monotime.Now(), Replicas: a.wanted, Value: value})
	step.Why = d.String()
	if d.Replicas == a.wanted {
		return nil
	}
	if err := a.target.Scale(ctx, d.Replicas); err != nil {
		return err
	}
	a.wanted = d.Replicas
	return nil
}
