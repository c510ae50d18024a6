// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/load"
)

// flap measures requests that are lost while pods come and go.
func (s *sampler) flap(ctx context.Context) error {
	refusing, err := s.makeTargets(ctx, "gentle", cluster.Server{Image: s.image, Stop: cluster.StopRefuse})
	if err != nil {
		return err
	}
	byStop := map[string]map[string]*cluster.Target{cluster.StopNow: s.targets, cluster.StopRefuse: refusing}
	defer func(before map[string]*cluster.Target) { s.targets = before }(s.targets)
	for _, mode := range s.nextTurn() {
		for _, c := range s.params.flapCases() {
			s.targets = byStop[c.Stop]
			if err := s.targets[mode].ScaleTo(ctx, fixedReplicas); err != nil {
				return err
			}
			t, err := s.enter(ctx, mode, s.from)
			if err != nil {
				return err
			}
			sample, err := flapUnderLoad(ctx, t, s.from, c, s.params.FlapTime, s.params.Interval)
			if err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			sample.Mode = mode
			s.out.Log("%s: %s: disturbed %d times: %d of %d failed, %d aborts", c, mode, sample.Disturbed, sample.Failed,
				sample.Requests, len(sample.Aborts))
			s.samples.Flap = append(s.samples.Flap, sample)
		}
	}
	return nil
}

// flapUnderLoad generates load for a time while the pods of a target are disturbed at an interval. A load generator
// that breaks off is started again.
func flapUnderLoad(
	ctx context.Context, t *cluster.Target, from *cluster.Vantage, c FlapCase, length, interval time.Duration,
) (FlapSample, error) {
	sample := FlapSample{FlapCase: c}
	disturbing, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- disturb(disturbing, t, c.Disturb, interval, &sample.Disturbed) }()
	generate := load.AbFor
	if c.KeepAlive {
		generate = load.WrkFor
	}
	begin := time.Now()
	var failed error
	for failed == nil {
		left := length - time.Since(begin)
		if left < time.Second {
			break
		}
		var r load.Result
		r, failed = generate(ctx, from.Hosts[0], from.Address(t), left, concurrency)
		sample.Runs++
		sample.Requests += r.Requests
		sample.Failed += r.Lost()
		if r.Aborted != "" {
			sample.Aborts = append(sample.Aborts, r.Aborted)
		}
	}
	sample.Seconds = time.Since(begin).Seconds()
	sample.PerSecond = float64(sample.Requests) / sample.Seconds
	stop()
	err := <-ended
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return sample, errors.Join(failed, err)
}

// disturb disturbs a target's pods at an interval until ctx ends.
func disturb(ctx context.Context, t *cluster.Target, how string, interval time.Duration, count *int) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := disturbOnce(ctx, t, how, *count); err != nil {
			return errors.Join(ctx.Err(), err)
		}
		*count++
	}
}

// disturbOnce does disturbance n.
func disturbOnce(ctx context.Context, t *cluster.Target, how string, n int) error {
	switch how {
	case DisturbScale:
		return t.Scale(ctx, []int{1, fixedReplicas}[n%2])
	case DisturbRollout:
		return restartRollout(ctx, t)
	case DisturbDelete:
		return deleteOldest(ctx, t)
	}
	return fmt.Errorf("no disturbance %q", how)
}

// restartRollout is `kubectl rollout restart`. The Deployment of a WangellService has its name.
func restartRollout(ctx context.Context, t *cluster.Target) error {
	patch := `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":` +
		strconv.Quote(time.Now().Format(time.RFC3339Nano)) + `}}}}}`
	_, err := t.Cluster.Kube.AppsV1().Deployments(t.Cluster.Namespace).Patch(ctx, t.Name, types.StrategicMergePatchType,
		[]byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("restart the rollout of %s: %w", t.Name, err)
	}
	return nil
}

// deleteOldest deletes the oldest pod that is ready, if there is one.
func deleteOldest(ctx context.Context, t *cluster.Target) error {
	pods, err := t.Pods(ctx)
	if err != nil {
		return err
	}
	oldest := ""
	var since time.Time
	for i := range pods {
		if at := pods[i].CreationTimestamp.Time; cluster.Ready(&pods[i]) && (oldest == "" || at.Before(since)) {
			oldest, since = pods[i].Name, at
		}
	}
	if oldest == "" {
		return nil
	}
	err = t.Cluster.Kube.CoreV1().Pods(t.Cluster.Namespace).Delete(ctx, oldest, metav1.DeleteOptions{})
	if err != nil {
		return fmt.Errorf("delete pod %s: %w", oldest, err)
	}
	return nil
}
