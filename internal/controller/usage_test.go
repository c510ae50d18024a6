// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 || math.IsNaN(a) && math.IsNaN(b) }

func TestConsumptionIsAPercentageOfRequests(t *testing.T) {
	const s = monotime.Time(1e9)
	requests := map[corev1.ResourceName]float64{corev1.ResourceCPU: 0.5, corev1.ResourceMemory: 1000}
	var c consumption
	for i, step := range []struct {
		at          monotime.Time
		cpu         time.Duration
		now         monotime.Time
		percent     float64
		ofMemory    uint64
		wantsMemory float64
	}{
		{10 * s, time.Second, 10 * s, math.NaN(), 500, 50},                           // one measurement is no rate
		{11 * s, 1500 * time.Millisecond, 11 * s, math.NaN(), 900, 50},               // too soon after it
		{12 * s, 1500 * time.Millisecond, 12 * s, 50, 800, 80},                       // 0.25 of 0.5 cores
		{11 * s, 1500 * time.Millisecond, 12 * s, 50, 100, 80},                       // overtaken
		{14 * s, 3500 * time.Millisecond, 14 * s, 200, 1500, 150},                    // one whole core
		{14 * s, 3500 * time.Millisecond, 14*s + 16*s, math.NaN(), 1500, math.NaN()}, // too old
		{31 * s, time.Millisecond, 31 * s, math.NaN(), 10, 1},                        // a new process
	} {
		c.add(runtime.Usage{CPU: step.cpu, Memory: step.ofMemory, At: step.at})
		if got := c.percent(v1alpha1.MetricCPU, requests, step.now); !near(got, step.percent) {
			t.Errorf("step %d: %v %% of CPU, want %v", i, got, step.percent)
		}
		if got := c.percent(v1alpha1.MetricMemory, requests, step.now); !near(got, step.wantsMemory) {
			t.Errorf("step %d: %v %% of memory, want %v", i, got, step.wantsMemory)
		}
	}
}

func TestRequestsAreSummedOverContainers(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		for name, q := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
			if q != "" {
				l[name] = resource.MustParse(q)
			}
		}
		return l
	}
	plain := func(requests, limits corev1.ResourceList) v1alpha1.WangellServiceSpec {
		return v1alpha1.WangellServiceSpec{Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
	}
	container := func(requests, limits corev1.ResourceList) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
	}
	template := func(c ...corev1.Container) v1alpha1.WangellServiceSpec {
		return v1alpha1.WangellServiceSpec{Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: c}}}
	}
	for _, c := range []struct {
		name        string
		spec        v1alpha1.WangellServiceSpec
		cpu, memory float64
	}{
		{"nothing", v1alpha1.WangellServiceSpec{}, math.NaN(), math.NaN()},
		{"requests", plain(list("250m", "64Mi"), nil),
			0.25, 64 << 20},
		{"a limit counts as a request", plain(list("1", ""), list("2", "1Ki")), 1, 1024},
		{"zero", plain(list("0", ""), nil), math.NaN(),
			math.NaN()},
		{"two containers", template(container(list("1", "1Ki"), nil), container(list("500m", ""), nil)), 1.5, math.NaN()},
	} {
		got := requestsOf(&c.spec)
		if !near(got[corev1.ResourceCPU], c.cpu) || !near(got[corev1.ResourceMemory], c.memory) {
			t.Errorf("%s: %v, want %v cores and %v bytes", c.name, got, c.cpu, c.memory)
		}
	}
}

// It is not known unless it is known for all of them.
func TestUseIsTheMeanOfServingPods(t *testing.T) {
	const now = monotime.Time(20e9)
	spec := &v1alpha1.WangellService{}
	spec.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100")}
	using := func(n uint64, state lifecycle.PodState) *pod {
		return &pod{published: state, usage: consumption{last: runtime.Usage{Memory: n, At: now}}}
	}
	s := &service{wanted: &wanted{spec: spec}}
	if got := s.use(v1alpha1.MetricMemory, now); !math.IsNaN(got) {
		t.Errorf("without a pod: %v", got)
	}
	s.pods = []*pod{using(50, lifecycle.PodServing), using(150, lifecycle.PodServing), using(900, lifecycle.PodDraining)}
	if got := s.use(v1alpha1.MetricMemory, now); !near(got, 100) {
		t.Errorf("two pods: %v, want 100", got)
	}
	s.pods = append(s.pods, &pod{published: lifecycle.PodServing})
	if got := s.use(v1alpha1.MetricMemory, now); !math.IsNaN(got) {
		t.Errorf("with a pod that was not measured: %v", got)
	}
}

func TestSavingsAreRequestsTimesTheTimeAsleep(t *testing.T) {
	requests := func(cpu, memory float64) map[corev1.ResourceName]float64 {
		return map[corev1.ResourceName]float64{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory}
	}
	at := func(s int) monotime.Time { return monotime.Time(1).Add(time.Duration(s) * time.Second) }
	s := newSleep(at(0))
	s.is(false, at(10), requests(0.5, math.NaN())) // asleep for 10 s
	s.is(false, at(20), requests(4, 4))            // a change while it was awake
	s.is(true, at(30), requests(4, 4))
	s.is(true, at(31), requests(2, 100)) // a change while it sleeps
	got := s.until(at(33), requests(1, math.NaN()))
	if want := (savings{13 * time.Second, 0.5*10 + 2*1 + 1*2, 100}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	none := newSleep(at(0))
	if got := none.until(at(9), requests(math.NaN(), math.NaN())); !math.IsNaN(got.cpu) || !math.IsNaN(got.memory) {
		t.Errorf("%+v without requests, want NaN", got)
	}
}

// What a sleep adds follows from when it began and the requests, so that nothing changes while a service sleeps.
func TestSleptStaysTheSameDuringASleep(t *testing.T) {
	requests := map[corev1.ResourceName]float64{corev1.ResourceCPU: 0.5, corev1.ResourceMemory: math.NaN()}
	now := monotime.Now()
	s := newSleep(now.Add(-30 * time.Second))
	s.is(false, now.Add(-20*time.Second), requests)
	if got, want := s.status(requests), (status.Slept{Seconds: 10, CPU: 5, RequestCPU: 0.5}); got != want {
		t.Errorf("awake: %+v, want %+v", got, want)
	}
	s.is(true, now.Add(-5*time.Second), requests)
	got := s.status(requests)
	if age := time.Since(got.Since); age < 5*time.Second || age > time.Minute {
		t.Errorf("asleep since %v, want 5 s ago", got.Since)
	}
	want := status.Slept{Since: got.Since, Seconds: 10, CPU: 5, RequestCPU: 0.5}
	if got != want || s.status(requests) != want {
		t.Errorf("asleep: %+v, then %+v, want %+v", got, s.status(requests), want)
	}
}

func TestPublishedStatesHaveTheValuesOfTheWire(t *testing.T) {
	for state, want := range map[lifecycle.PodState]wire.PodState{
		lifecycle.PodStarting: wire.PodStarting,
		lifecycle.PodServing:  wire.PodServing,
		lifecycle.PodDraining: wire.PodDraining,
	} {
		if wire.PodState(state) != want {
			t.Errorf("%v is %d, on the wire %d", state, state, want)
		}
	}
}

// The ID on the wire must not change: the next controller gives it to the pods that it adopts.
func TestWireIDDependsOnTheRuntimesIDOnly(t *testing.T) {
	if got := wireID("a-1"); got != 0xe61a64190463c246 || wireID("a-2") == got {
		t.Errorf("%#x", got)
	}
}
