// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/base/monotime"
)

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
	if got, want := s.status(requests), (Slept{Seconds: 10, CPU: 5, RequestCPU: 0.5}); got != want {
		t.Errorf("awake: %+v, want %+v", got, want)
	}
	s.is(true, now.Add(-5*time.Second), requests)
	got := s.status(requests)
	if age := time.Since(got.Since); age < 5*time.Second || age > time.Minute {
		t.Errorf("asleep since %v, want 5 s ago", got.Since)
	}
	if want := (Slept{Since: got.Since, Seconds: 10, CPU: 5, RequestCPU: 0.5}); got != want || s.status(requests) != want {
		t.Errorf("asleep: %+v, then %+v, want %+v", got, s.status(requests), want)
	}
}
