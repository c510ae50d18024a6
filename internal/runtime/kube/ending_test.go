// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStopSignalComesAfterTheSleepOfThePreStopHook(t *testing.T) {
	sleep := func(seconds int64) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}
	}
	for name, c := range map[string]struct {
		preStop       *corev1.LifecycleHandler
		signal, grace time.Duration
		ok            bool
	}{
		"no hook":                  {nil, 0, 10 * time.Second, true},
		"a sleep":                  {sleep(3), 3 * time.Second, 7 * time.Second, true},
		"longer than the grace":    {sleep(30), 10 * time.Second, 0, true},
		"a hook of unknown length": {&corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}, 0, 0, false},
	} {
		o := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "other", Lifecycle: &corev1.Lifecycle{PreStop: sleep(9)}},
			{Name: "app", Lifecycle: &corev1.Lifecycle{PreStop: c.preStop}},
		}}}
		o.DeletionGracePeriodSeconds = new(int64(10))
		trimPod(o)
		if signal, grace, ok := endOf(o, "app"); signal != c.signal || grace != c.grace || ok != c.ok {
			t.Errorf("%s: %v, %v, %t", name, signal, grace, ok)
		}
		if _, _, ok := endOf(o, "none"); ok {
			t.Errorf("%s: the end of a container that does not exist is known", name)
		}
	}
}

// It is told once, and not of pods that were being deleted before.
func TestEndingIsToldWhenTheDeletionBegins(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	o := w.apiPod(func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{Name: "app"}} })
	end := func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(10))
	}
	w.update(o, end)
	if e := get(w, w.r.Ending()); e.PodID != "app-1" || e.Signal != 0 || e.Grace != 10*time.Second ||
		e.Ended != nil {
		t.Errorf("%+v", e)
	}
	w.update(o, func(p *corev1.Pod) { end(p); p.Labels["again"] = "yes" })
	w.apiPod(nil) // is seen after the change
	nothing(w, "the end is told twice", w.r.Ending())
	if err := w.r.Close(); err != nil {
		t.Fatal(err)
	}
	w.open()
	nothing(w, "the end is told again", w.r.Ending())
}
