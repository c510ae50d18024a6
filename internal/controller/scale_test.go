// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/monotime"
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
		if e.Kind == EventReport && strings.HasPrefix(e.Text, "scaled") {
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
