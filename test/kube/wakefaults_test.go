// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/test/testutil/e2e"
)

// wakeSteps are the steps of a wake at which something stops, in order.
var wakeSteps = []struct {
	name    string
	reached func(*wakeView) bool
}{
	{"before the client", func(*wakeView) bool { return true }},
	{"once its pod exists", func(v *wakeView) bool { return len(v.pods) > 0 }},
	{"once its client is answered", func(v *wakeView) bool { return v.answered }},
	{"once its replicas are written", func(v *wakeView) bool { return v.replicas > 0 }},
	{"once its pod has a ReplicaSet", func(v *wakeView) bool { return v.adopted }},
}

// wakeFaults stop a part of the control plane for outage, or kill it. They call meanwhile once it has stopped.
var wakeFaults = map[string]func(t *testing.T, meanwhile func()){
	"the controller manager": func(t *testing.T, meanwhile func()) {
		suspend(t, "kube-controller", meanwhile) // the kernel has 15 bytes of a program's name
	},
	"the API server": func(t *testing.T, meanwhile func()) { suspend(t, "kube-apiserver", meanwhile) },
	"the leader": func(t *testing.T, meanwhile func()) {
		e2e.Must(lab.kubectl("", "delete", "pod", "-n", productNamespace, lab.leader(t), "--grace-period=0", "--force"))(t)
		meanwhile()
	},
}

// outage is for how long a part of the control plane stands still: shorter than what makes nodes count as dead.
const outage = 3 * time.Second

// suspend has a program of the control plane stand still for an outage. Its caches are late afterwards.
func suspend(t *testing.T, program string, meanwhile func()) {
	t.Helper()
	lab.command(t, "exec", "--control", "pkill", "-STOP", "-x", program)
	meanwhile()
	time.Sleep(outage) // the length of the outage, not a wait for something
	lab.command(t, "exec", "--control", "pkill", "-CONT", "-x", program)
}

// testWakeFaults stops the control plane at steps of wakes. Each wake ends with one pod, and what else was made is gone
// soon. With WANGELL_TEST_WAKE_FAULTS=all, each fault hits each step.
func testWakeFaults(t *testing.T) {
	some := map[string]string{
		wakeSteps[1].name: "the API server", wakeSteps[2].name: "the leader", wakeSteps[3].name: "the controller manager",
	}
	for _, step := range wakeSteps {
		for fault, stop := range wakeFaults {
			if some[step.name] == fault || os.Getenv("WANGELL_TEST_WAKE_FAULTS") == "all" {
				t.Run(fault+" stops "+step.name, func(t *testing.T) { wakeThrough(t, step.reached, stop) })
			}
		}
	}
}

func wakeThrough(t *testing.T, reached func(*wakeView) bool, stop func(*testing.T, func())) {
	const key = "default/one-pod"
	lab.apply(t, manifest(key, "idleTimeout: 600\nwakeTimeout: 600"))
	addr := lab.address(t, key)
	lab.waitCold(t, key)
	v := &wakeView{pods: map[string]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	defer func() {
		cancel()
		watching.Wait()
	}()
	watching.Go(func() { v.watch(ctx, key) })

	answer := make(chan error, 1)
	ask := func() {
		go func() {
			_, err := e2e.Ask(lab.client, addr)
			v.mu.Lock()
			v.answered = err == nil
			v.mu.Unlock()
			answer <- err
		}()
	}
	if v.holds(reached) { // before the client
		stop(t, ask)
	} else {
		ask()
		e2e.Eventually(t, "the step", func() (bool, string) { return v.holds(reached), v.String() })
		stop(t, func() {})
	}
	if err := <-answer; err != nil {
		t.Errorf("the client: %v", err)
	}
	lab.waitState(t, key, "Warm")
	e2e.Eventually(t, "one pod, of a Deployment at rest", func() (bool, string) {
		return v.holds((*wakeView).rests), v.String()
	})
	v.mu.Lock()
	defer v.mu.Unlock()
	t.Logf("pods made: %d; for %v there was more than one", len(v.pods), v.surplus)
	// On an idle machine this takes less than 2 s. The limit is for a busy one.
	if v.surplus > 15*time.Second {
		t.Errorf("for %v there was more than one pod: %v", v.surplus, v.pods)
	}
}

// wakeView is what the API server shows of a wake.
type wakeView struct {
	mu       sync.Mutex
	pods     map[string]string // what is known of each pod that was seen, by name
	live     int               // pods that are not about to end
	adopted  bool              // one of them has a ReplicaSet
	replicas int32             // of the Deployment
	settled  bool              // the Deployment's controller has seen it, and counts as many pods as it wants
	answered bool              // the client has its answer
	surplus  time.Duration     // how long more than one live pod was seen
}

func (v *wakeView) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return fmt.Sprintf("pods %v, %d live; replicas %d, settled %t", v.pods, v.live, v.replicas, v.settled)
}

func (v *wakeView) holds(f func(*wakeView) bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return f(v)
}

// rests reports whether the wake is over: the Deployment has its one pod. The lock is held.
func (v *wakeView) rests() bool { return v.live == 1 && v.adopted && v.replicas == 1 && v.settled }

// watch looks until ctx ends. Times in which the API server does not answer do not count.
func (v *wakeView) watch(ctx context.Context, key string) {
	var last time.Time // of the look before, if it was answered
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		look, end := context.WithTimeout(ctx, time.Second)
		var pods corev1.PodList
		var d appsv1.Deployment
		of := nameOf(key)
		err := lab.api.List(look, &pods, client.InNamespace(of.Namespace),
			client.MatchingLabels{v1alpha1.LabelService: of.Name})
		if err == nil {
			err = lab.api.Get(look, of, &d)
		}
		end()
		if err != nil {
			last = time.Time{}
			continue
		}
		now := time.Now()
		v.mu.Lock()
		v.see(pods.Items, &d)
		if v.live > 1 && !last.IsZero() {
			v.surplus += now.Sub(last)
		}
		v.mu.Unlock()
		last = now
	}
}

// see records what there is. The lock is held.
func (v *wakeView) see(pods []corev1.Pod, d *appsv1.Deployment) {
	v.live, v.adopted = 0, false
	for i := range pods {
		p := &pods[i]
		over := p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
		v.pods[p.Name] = fmt.Sprintf("%s, ending %t, owners %d", p.Status.Phase, p.DeletionTimestamp != nil,
			len(p.OwnerReferences))
		if p.DeletionTimestamp == nil && !over {
			v.live++
			for _, o := range p.OwnerReferences {
				v.adopted = v.adopted || o.Kind == "ReplicaSet"
			}
		}
	}
	v.replicas = 0
	if d.Spec.Replicas != nil {
		v.replicas = *d.Spec.Replicas
	}
	v.settled = !d.Spec.Paused && d.Status.ObservedGeneration == d.Generation && d.Status.Replicas == v.replicas &&
		d.Status.ReadyReplicas == v.replicas
}
