// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
)

// A controller says since when it knows the wakes of a service that is older than its lead.
func TestHistoryOfAnOlderServiceBeginsWithTheLead(t *testing.T) {
	w := newWorld(t, nil)
	began := w.c.engine.began
	for name, made := range map[string]time.Time{"old": began.Add(-time.Hour), "new": began.Add(time.Hour), "here": {}} {
		s := newService(name)
		s.CreationTimestamp = metav1.NewTime(made)
		w.apply(s)
		want := time.Time{}
		if name == "old" {
			want = began
		}
		if got := w.status(name).HistorySince; !got.Equal(want) {
			t.Errorf("%s: its history begins at %v, want %v", name, got, want)
		}
	}
}

// What an earlier controller has seen of a service is shown until this one has seen something later.
func TestNextControllerKnowsTheLastWakeFromTheStatus(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"), newService("b"))
	used, start := time.Date(2026, 5, 1, 14, 2, 0, 0, time.UTC), time.Date(2026, 5, 1, 14, 1, 59, 0, time.UTC)
	stored := v1alpha1.WangellServiceStatus{
		LatestRequest: &metav1.Time{Time: used},
		LastWake: &v1alpha1.LastWake{Start: metav1.NewTime(start), Result: "warm", Phases: []v1alpha1.WakePhase{
			{Name: "syn-seen"}, {Name: "listening", Ms: 190}, {Name: "released", Ms: 200}}},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "NoAddress"}},
	}
	w.c.Recall("default/a", stored)
	w.c.Recall("default/none", stored)
	st := w.status("a")
	if at := st.Service.Status.LatestRequest; at == nil || !at.Time.Equal(used) || len(st.Service.Status.Conditions) != 1 {
		t.Errorf("status %+v", st.Service.Status)
	}
	if st.LastWake == nil || !st.LastWake.Start.Equal(start) || st.LastWake.Number != 0 {
		t.Errorf("last wake %+v", st.LastWake)
	}
	if other := w.status("b"); other.LastWake != nil || other.Service.Status.LatestRequest != nil {
		t.Errorf("another service: %+v", other)
	}
	for _, key := range []v1alpha1.Key{"default/a", ""} {
		all := w.c.Wakes(key)
		if len(all) != 1 || all[0].Result != lifecycle.ResultWarm {
			t.Fatalf("wakes of %q: %+v", key, all)
		}
		if at, ok := all[0].At(lifecycle.PhaseReleased); !ok || at != 200*time.Millisecond || all[0].Phases[2].Took != 10e6 {
			t.Errorf("released after %v: %+v", at, all[0])
		}
	}

	w.warm("a")
	w.c.Recall("default/a", stored) // status is written again and again
	w.until("its own wake", func() bool {
		all := w.c.Wakes("default/a")
		return len(all) == 1 && all[0].Number == 1 && w.status("a").LastWake.Number == 1
	})
	if at := w.status("a").Service.Status.LatestRequest; at == nil || !at.After(used) {
		t.Errorf("last packet at %v", at)
	}

	stored.LastWake.Result = "running" // nobody knows how it ended
	w.c.Recall("default/b", stored)
	if all := w.c.Wakes("default/b"); len(all) != 0 {
		t.Errorf("wakes of b: %+v", all)
	}
}
