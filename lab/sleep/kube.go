// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/machine/zram"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/knative"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
)

const (
	// kubeZram is the size in bytes of the swap that the nodes share, if they have zram.
	kubeZram = 1 << 30
	// knativeWarm is the number of warm requests to Knative's pod after each cold one.
	knativeWarm = 10
	// calm is how long a cluster is left alone before a cold request.
	calm = time.Second
)

// kubeStates are the states in which the hello image is asked on a cluster.
var kubeStates = []string{stateWarm, stateFrozen, stateReclaimed, stateCold}

// kubeRun measures on a cluster.
type kubeRun struct {
	*cluster.Cluster

	image    string
	services map[string]*cluster.Target // by state
	knative  *knative.Service           // nil if the cluster does not have it
	out      *Kube
}

// measureKube asks services on a cluster, in each state in turn, and Knative's whenever it has gone to sleep.
func measureKube(ctx context.Context, p Params, out lab.Output, s *Samples) (err error) {
	if !p.measures(PartCluster) {
		return nil
	}
	c, err := cluster.Open(ctx, p.Cluster, knative.Resource)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := c.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
		}
	}()
	swap, err := addSwap(c)
	if err != nil {
		return err
	}
	r := &kubeRun{Cluster: c, services: map[string]*cluster.Target{}, out: &Kube{}}
	if err := r.begin(ctx, swap); err != nil {
		return err
	}
	for round := range p.Rounds {
		for _, state := range kubeStates {
			if r.services[state] == nil {
				continue
			}
			if err := r.measure(ctx, state); err != nil {
				return fmt.Errorf("on the cluster, %s: %w", state, err)
			}
		}
		if err := r.askKnative(ctx, round == p.Rounds-1); err != nil {
			return err
		}
		out.Progress(round+1, p.Rounds)
	}
	s.Kube = r.out
	return nil
}

// addSwap gives the machine swap until the cluster is closed. It returns false if the kernel has no zram.
func addSwap(c *cluster.Cluster) (bool, error) {
	dir, err := os.MkdirTemp("", "wangell-lab-zram-")
	if err != nil {
		return false, err
	}
	file := filepath.Join(dir, "zram.json")
	c.OnClose(func() error { return errors.Join(zram.Remove(file), os.RemoveAll(dir)) })
	err = zram.Add(file, kubeZram)
	if errors.Is(err, zram.ErrNone) {
		return false, nil
	}
	return err == nil, err
}

// begin makes the services, and asks each once.
func (r *kubeRun) begin(ctx context.Context, swap bool) error {
	var err error
	if r.image, err = r.PushHello(ctx); err != nil {
		return err
	}
	for _, state := range kubeStates {
		more := map[string]any{}
		switch state {
		case stateReclaimed:
			if !swap {
				continue
			}
			fallthrough
		case stateFrozen:
			more["sleep"] = map[string]any{"freezeAfter": "1s", "reclaim": state == stateReclaimed, "freezeWhenBusy": true}
		}
		server := cluster.Server{Image: r.image, Stop: cluster.StopNow}
		if r.services[state], err = r.WangellTargetWith(ctx, "sleep-"+state, server, 1, more); err != nil {
			return err
		}
		if _, err := r.ask(ctx, r.services[state]); err != nil {
			return fmt.Errorf("first request to %s: %w", state, err)
		}
	}
	if err := r.noteRequests(ctx, &r.out.RequestsAwake); err != nil {
		return err
	}
	service := &knative.Service{Cluster: r.Cluster, Name: "sleep-knative", Image: r.image,
		Annotations: map[string]string{knative.Window: "6s"}}
	switch err := service.Create(ctx); {
	case err == nil:
		r.knative = service
	case !errors.Is(err, knative.ErrMissing):
		return err
	}
	return nil
}

// ask makes a request, with as many attempts as it takes until a new address has reached the nodes.
func (r *kubeRun) ask(ctx context.Context, t *cluster.Target) (a Answer, err error) {
	return a, cluster.Until(ctx, cluster.ReadyTimeout, func() error {
		a, err = r.request(ctx, t.Outside, t.Outside)
		return err
	})
}

// request makes one request on a connection of its own, from outside of the cluster.
func (r *kubeRun) request(ctx context.Context, address, host string) (Answer, error) {
	a := Answer{App: "hello", Load: report.LoadAverage()}
	t, err := probe.RequestOnThread(ctx, r.Client, address, host)
	a.Connect, a.FirstByte = report.Milliseconds(t.Connected), report.Milliseconds(t.FirstByte)
	return a, err
}

// measure brings a service into a state and makes one request.
func (r *kubeRun) measure(ctx context.Context, state string) error {
	t := r.services[state]
	var resident float64
	switch state {
	case stateCold:
		if err := t.ScaleTo(ctx, 0); err != nil {
			return err
		}
		if err := errors.Join(r.until(ctx, t, lifecycle.Cold), lab.Sleep(ctx, calm)); err != nil {
			return err
		}
	case stateFrozen, stateReclaimed:
		if err := r.until(ctx, t, lifecycle.Frozen); err != nil {
			return err
		}
		var err error
		if resident, err = r.settled(ctx, t); err != nil {
			return err
		}
		if state == stateFrozen && r.out.RequestsFrozen == 0 {
			if err := r.noteRequests(ctx, &r.out.RequestsFrozen); err != nil {
				return err
			}
		}
	}
	// What looking at the state has caused is over.
	if err := lab.Sleep(ctx, quiet); err != nil {
		return err
	}
	a, err := r.request(ctx, t.Outside, t.Outside)
	if err != nil {
		return err
	}
	a.State, a.Resident = state, resident
	r.out.Answers = append(r.out.Answers, a)
	if state != stateCold {
		return nil
	}
	return r.until(ctx, t, lifecycle.Warm)
}

// until waits until the API shows a service in a state.
func (r *kubeRun) until(ctx context.Context, t *cluster.Target, state lifecycle.State) error {
	return cluster.Until(ctx, cluster.ReadyTimeout, func() error {
		object, err := r.Dynamic.Resource(t.Resource).Namespace(r.Namespace).Get(ctx, t.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now, _, _ := unstructured.NestedString(object.Object, "status", "state"); now != state.String() {
			return fmt.Errorf("service %s is %s, want %s: does the chart have daemon.freezing.enabled?", t.Name, now, state)
		}
		return nil
	})
}

// only returns the only pod of a service.
func (r *kubeRun) only(ctx context.Context, t *cluster.Target) (*corev1.Pod, error) {
	pods, err := t.Pods(ctx)
	if err != nil {
		return nil, err
	}
	if len(pods) != 1 {
		return nil, fmt.Errorf("service %s has %d pods, want 1", t.Name, len(pods))
	}
	return &pods[0], nil
}

// settled waits until the memory of a frozen pod does not change any more, and returns it in MB, without files.
func (r *kubeRun) settled(ctx context.Context, t *cluster.Target) (float64, error) {
	pod, err := r.only(ctx, t)
	if err != nil {
		return 0, err
	}
	return settledMemory(ctx, pod.Name, func() (float64, error) {
		bytes, err := r.PodMemory(pod)
		return float64(bytes) / mb, err
	})
}

// noteRequests notes what the scheduler counts for the pod that freezes, in cores: the requests of its containers. A
// frozen pod gives them back soon after, or keeps them.
func (r *kubeRun) noteRequests(ctx context.Context, cores *float64) error {
	awake := r.out.RequestsAwake
	err := cluster.Until(ctx, requestsIn, func() error {
		pod, err := r.only(ctx, r.services[stateFrozen])
		if err != nil {
			return err
		}
		*cores = 0
		for _, c := range pod.Spec.Containers {
			*cores += c.Resources.Requests.Cpu().AsApproximateFloat64()
		}
		if *cores == 0 || awake > 0 && *cores >= awake {
			return errStillRequested
		}
		return nil
	})
	if errors.Is(err, errStillRequested) {
		return nil // it is what it is
	}
	return err
}

// requestsIn is how long a frozen pod may take to give its requests back.
const requestsIn = 10 * time.Second

var errStillRequested = errors.New("the pod still has its requests")

// askKnative makes a cold request if Knative has no pod left, for which it waits in the last round, and then
// some warm ones.
func (r *kubeRun) askKnative(ctx context.Context, last bool) error {
	if r.knative == nil {
		return nil
	}
	asleep := func() error {
		pods, err := r.Pods(ctx, r.knative.Selector())
		if err == nil && len(pods) > 0 {
			err = errors.New("a pod of Knative is still there")
		}
		return err
	}
	if last && len(r.out.Knative) == 0 {
		if err := cluster.Until(ctx, cluster.ZeroTimeout, asleep); err != nil {
			return err
		}
	}
	if asleep() != nil {
		return nil
	}
	if err := lab.Sleep(ctx, calm); err != nil {
		return err
	}
	for i := range 1 + knativeWarm {
		a, err := r.request(ctx, r.knative.Address, r.knative.Host)
		if err != nil {
			return fmt.Errorf("the service of Knative: %w", err)
		}
		if a.State = stateWarm; i == 0 {
			a.State = stateCold
		}
		r.out.Knative = append(r.out.Knative, a)
	}
	return nil
}
