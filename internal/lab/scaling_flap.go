// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Disturbances of PartFlap.
const (
	// DisturbScale is `kubectl scale` between 1 and 3 pods.
	DisturbScale = "scale"
	// DisturbRollout is `kubectl rollout restart`, over and over.
	DisturbRollout = "rollout"
	// DisturbDelete is `kubectl delete pod` of the oldest pod, over and over.
	DisturbDelete = "delete"
)

// FlapCase is a disturbance under a load.
type FlapCase struct {
	// Disturb is what is done to the pods.
	Disturb string `json:"disturb"`
	// KeepAlive: wrk with kept connections, else ab with a connection for each request.
	KeepAlive bool `json:"keep_alive"`
	// Key is its name for machines.
	Key string `json:"case"`
	// Stop is what the load server does at SIGTERM: "now" it ends, "refuse" it stops listening and finishes what is open.
	Stop string `json:"stop"`
}

// String names the case.
func (c FlapCase) String() string {
	tool := "ab"
	if c.KeepAlive {
		tool = "wrk"
	}
	return c.Disturb + ", " + tool + ", server ends: " + c.Stop
}

// FlapCases are those that are measured. A server that ends at once cuts off what it has not answered when others delete
// it: no balancing can help that, so only the scaling of our own and of kube-proxy's Deployment is measured with it.
var FlapCases = []FlapCase{
	{DisturbScale, false, "scale_ab", stopNow},
	{DisturbScale, false, "scale_refuse_ab", stopRefuse},
	{DisturbScale, true, "scale_wrk", stopRefuse},
	{DisturbRollout, false, "rollout_ab", stopRefuse},
	{DisturbRollout, true, "rollout_wrk", stopRefuse},
	{DisturbDelete, false, "delete_ab", stopRefuse},
	{DisturbDelete, true, "delete_wrk", stopRefuse},
}

// FlapCaseKeys are the keys of FlapCases.
func FlapCaseKeys() (keys []string) {
	for _, c := range FlapCases {
		keys = append(keys, c.Key)
	}
	return keys
}

// flapCases are those of FlapCases that are measured.
func (c ScalingConfig) flapCases() []FlapCase {
	return slices.DeleteFunc(slices.Clone(FlapCases), func(f FlapCase) bool { return !slices.Contains(c.Cases, f.Key) })
}

// FlapSample is what clients saw of a disturbance.
type FlapSample struct {
	Mode string `json:"mode"`
	FlapCase
	// Disturbed is how often the pods were disturbed.
	Disturbed int `json:"disturbed"`
	// Runs is how many runs of the load generator it took, Aborts how many of them broke off, and why.
	Runs   int      `json:"runs"`
	Aborts []string `json:"aborts,omitempty"`
	Load
}

// flap measures requests that are lost while pods come and go.
func (m *scalingRun) flap(ctx context.Context) error {
	byStop := map[string][]*target{stopNow: m.targets}
	refuse, err := m.makeTargets(ctx, "gentle", stopRefuse)
	if err != nil {
		return err
	}
	byStop[stopRefuse] = refuse
	original := m.targets
	defer func() { m.targets = original }()
	for _, mode := range m.nextTurn() {
		for _, c := range m.cfg.flapCases() {
			m.targets = byStop[c.Stop]
			if err := m.of(mode).scaleTo(ctx, scalingReplicas); err != nil {
				return err
			}
			t, err := m.enter(ctx, mode, m.from)
			if err != nil {
				return err
			}
			s, err := flap(ctx, t, m.from, c, m.cfg.FlapTime, m.cfg.Interval)
			if err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			s.Mode = mode
			m.cfg.Log("%s: %s: disturbed %d times: %d of %d failed, %d aborts", c, mode, s.Disturbed, s.Failed, s.Requests, len(s.Aborts))
			m.raw.Flap = append(m.raw.Flap, s)
		}
	}
	return nil
}

// flap makes load for a time while the pods of a target are disturbed at an interval. A load generator that breaks off is
// started again.
func flap(ctx context.Context, t *target, from *vantage, c FlapCase, length, interval time.Duration) (FlapSample, error) {
	s := FlapSample{FlapCase: c}
	disturbing, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- disturb(disturbing, t, c.Disturb, interval, &s.Disturbed) }()
	begin := time.Now()
	var failed error
	for {
		left := length - time.Since(begin)
		if left < time.Second || failed != nil {
			break
		}
		var l Load
		if c.KeepAlive {
			l, failed = wrkFor(ctx, from.hosts[0], from.address(t), left, scalingConcurrency)
		} else {
			l, failed = abFor(ctx, from.hosts[0], from.address(t), left, scalingConcurrency)
		}
		s.Runs++
		s.Requests += l.Requests
		s.Failed += l.lost()
		if l.Aborted != "" {
			s.Aborts = append(s.Aborts, l.Aborted)
		}
	}
	s.Seconds = time.Since(begin).Seconds()
	s.PerSecond = float64(s.Requests) / s.Seconds
	stop()
	err := <-ended
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return s, errors.Join(failed, err)
}

// disturb disturbs a target's pods at an interval until ctx ends.
func disturb(ctx context.Context, t *target, how string, interval time.Duration, count *int) error {
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

func disturbOnce(ctx context.Context, t *target, how string, n int) error {
	kube, namespace := t.cluster.kube, t.cluster.namespace
	switch how {
	case DisturbScale:
		return t.scale(ctx, []int{1, scalingReplicas}[n%2])
	case DisturbRollout:
		patch := `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":` + strconv.Quote(time.Now().Format(time.RFC3339Nano)) + `}}}}}`
		// The Deployment of a WangellService has its name.
		if _, err := kube.AppsV1().Deployments(namespace).Patch(ctx, t.name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("restart the rollout of %s: %w", t.name, err)
		}
	case DisturbDelete:
		pods, err := t.pods(ctx)
		if err != nil {
			return err
		}
		oldest := ""
		var since time.Time
		for i := range pods {
			if at := pods[i].CreationTimestamp.Time; ready(&pods[i]) && (oldest == "" || at.Before(since)) {
				oldest, since = pods[i].Name, at
			}
		}
		if oldest == "" {
			return nil // all of them start
		}
		if err := kube.CoreV1().Pods(namespace).Delete(ctx, oldest, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete pod %s: %w", oldest, err)
		}
	}
	return nil
}
