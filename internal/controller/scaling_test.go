// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

func TestNumberOfPodsFollowsTheLoad(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) {
		s.MaxReplicas, s.Scaling = 3, &v1alpha1.Scaling{Metric: v1alpha1.MetricConnections, Target: 10}
	}))
	events := w.c.Subscribe(t.Context())
	a := w.warm("a")
	w.d.send(&wire.Stats{Pods: []wire.PodStats{{Service: a, PodID: wireID("a-1"), OpenFlows: 21, NewFlows: 21,
		LastPacket: monotime.Now()}}})
	w.until("three pods", func() bool { return w.d.pods(a) == " serving serving serving" })
	for e := range events {
		if e.Kind == status.EventReport && strings.HasPrefix(e.Text, "scaled") {
			if e.Text != "scaled from 1 to 3: connections 21 for each pod, target 10: wants 3" {
				t.Errorf("event %q", e.Text)
			}
			break
		}
	}
	if o, ok := w.c.Observe("default/a"); !ok || o.Open != 21 || o.Serving != 3 || o.Desired != 3 || len(o.Pods) != 3 {
		t.Errorf("observation %+v", o)
	}
}

func TestNumberOfPodsFollowsRequests(t *testing.T) {
	for metric, want := range map[v1alpha1.ScalingMetric]string{
		v1alpha1.MetricConcurrency: "scaled from 1 to 3: concurrency 25 for each pod, target 10: wants 3",
		v1alpha1.MetricRequests:    "scaled from 1 to 2: requests 16 for each pod, target 10: wants 2",
	} {
		w := newWorld(t, nil)
		w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) {
			s.MaxReplicas, s.Scaling = 4, &v1alpha1.Scaling{Metric: metric, Target: 10}
			s.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest}
		}))
		events := w.c.Subscribe(t.Context())
		a := w.warm("a")
		now := monotime.Now()
		report := func(at monotime.Time, started uint64) *wire.Answers {
			return &wire.Answers{At: at, Pods: []wire.PodAnswers{
				{Service: a, PodID: wireID("a-1"), Open: 5, Started: started}, {Service: a, Open: 20},
			}}
		}
		w.d.send(report(now-1e9, 100))
		w.d.send(report(now, 116))
		for e := range events {
			if e.Kind == status.EventReport && strings.HasPrefix(e.Text, "scaled") {
				if e.Text != want {
					t.Errorf("%s: event %q, want %q", metric, e.Text, want)
				}
				break
			}
		}
	}
}

// Without Envoy, pods have connections, but nobody reports requests.
func TestNumberOfPodsStaysIfNobodyCountsRequests(t *testing.T) {
	s := &service{pods: []*pod{{}}}
	if perSecond, open := s.requestLoad(true, 1); !math.IsNaN(perSecond) || !math.IsNaN(open) {
		t.Errorf("%v, %v with connections", perSecond, open)
	}
	if perSecond, open := s.requestLoad(false, 1); perSecond != 0 || open != 0 {
		t.Errorf("%v, %v without", perSecond, open)
	}
}

// A pod that was started from outside, beyond the desired number, is drained and stopped, but not while the runtime
// replaces pods.
func TestExcessPodFromOutsideIsRemoved(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.roll = true })
	a := w.put(newService("a", upTo(3)), 1)
	w.synced()
	w.scale("a", 1)
	w.untilPods(a, " serving")
	w.cluster.mu.Lock()
	w.cluster.asked = 0
	w.cluster.mu.Unlock()
	p := w.cluster.place(newService("a", upTo(3)))
	p.Started = 0
	w.cluster.appeared <- p
	w.untilPods(a, " serving serving")
	w.until("its time came while pods are replaced", func() bool {
		w.cluster.mu.Lock()
		defer w.cluster.mu.Unlock()
		return w.cluster.asked > 0
	})
	if _, _, stopped := w.rt.state(); len(stopped) != 0 || w.d.pods(a) != " serving serving" {
		t.Errorf("stopped %v, there are%s", stopped, w.d.pods(a))
	}
	w.cluster.mu.Lock()
	w.cluster.roll = false
	w.cluster.mu.Unlock()
	w.untilPods(a, " serving")
	if _, started, stopped := w.rt.state(); len(started) != 2 || len(stopped) != 1 || w.status("a").Desired != 1 {
		t.Errorf("started %v, stopped %v, %+v", started, stopped, w.status("a"))
	}
}
