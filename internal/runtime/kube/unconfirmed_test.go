// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// A daemon can be a moment ahead of the API server. What it reports counts as soon as that has bound the pod.
func TestReportsCountOnceThePodIsBound(t *testing.T) {
	w := newWorld(t, 0)
	out := w.start(t.Context(), runtime.StartHooks{})
	w.reportFrom("n1", "app-1", network)
	o := w.apiPod(nil)
	w.reportFrom("n1", "app-1", created)
	w.reportFrom("n1", "app-1", started)
	nothing(w, "a Start got a pod that is on no node", out)
	w.update(o, func(o *corev1.Pod) { o.Spec.NodeName = "n1" })
	if got := get(w, out); got.err != nil || got.pod.ID != "app-1" || got.pod.Node != "n1" {
		t.Errorf("got %+v, %v", got.pod, got.err)
	}
}

// Whoever has the key of a node reports pods that do not exist, or that are on other nodes or of other services.
// Nothing comes of it: no pod, no exit, no log that is read.
func TestNodeCannotReportPodsThatItDoesNotHave(t *testing.T) {
	w := newWorld(t, 1)
	w.create("app-1", func(o *corev1.Pod) { o.Spec.NodeName = "n1" })
	w.create("app-2", nil)
	w.create("mine", func(o *corev1.Pod) { o.Spec.NodeName = "stolen" })
	all := []runtime.PodEvent{network, created, started, exited, gone}
	for i := range 1000 {
		for _, e := range all {
			w.reportFrom("stolen", fmt.Sprint("invented-", i), e)
		}
	}
	for _, e := range all {
		w.reportFrom("stolen", "app-1", e)
		w.reportFrom("stolen", "app-2", e)
		w.r.ReportPod(runtime.PodReport{
			Event: e, Name: "mine", Container: "app", At: monotime.Now(),
			Pod: runtime.Pod{ID: "mine", Service: "default/other", Addr: netip.MustParseAddr("10.1.0.9"), Node: "stolen"},
		})
	}
	w.report("app-2", network) // it is on n1
	if p := get(w, w.r.Appeared()); p.ID != "app-2" || p.Node != "n1" {
		t.Errorf("%+v appeared", p)
	}
	nothing(w, "another pod appeared", w.r.Appeared())
	nothing(w, "a process has ended", w.r.Exits())
	if pods, _ := w.r.List(t.Context()); len(pods) != 3 {
		t.Errorf("%d pods are listed", len(pods))
	}
	for _, a := range w.client.Actions() {
		if a.GetSubresource() == "log" {
			t.Errorf("the log of a pod was read: %+v", a)
		}
	}
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	if kept := len(w.r.unconfirmed.byNode["stolen"].pods); kept > maxUnconfirmedPods || len(w.r.services) != 1 {
		t.Errorf("%d unconfirmed pods and %d services are kept", kept, len(w.r.services))
	}
}

// A mirror pod is made by a node for itself, with any labels (admission plugin NodeRestriction).
func TestMirrorPodsBelongToNoService(t *testing.T) {
	w := newWorld(t, 1)
	mirror := &corev1.Pod{}
	mirror.Name, mirror.Namespace, mirror.UID = "app-1", "default", "app-1"
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	mirror.Labels = map[string]string{v1alpha1.LabelService: "app"}
	mirror.Spec.NodeName = "stolen"
	w.r.podSeen(mirror, false)
	w.reportFrom("stolen", "app-1", network)
	nothing(w, "it appeared", w.r.Appeared())
	if pods, _ := w.r.List(t.Context()); len(pods) != 0 {
		t.Errorf("listed: %+v", pods)
	}
}

func TestUnconfirmedReportsAreFewAndEnd(t *testing.T) {
	var u unconfirmed
	begin := time.Unix(1e9, 0)
	report := func(node, uid string, e runtime.PodEvent) runtime.PodReport {
		return runtime.PodReport{Event: e, Pod: runtime.Pod{ID: uid, Node: node}}
	}
	for i := range 10 * maxUnconfirmedPods {
		for range 2 * maxUnconfirmedEvents {
			u.add(report("stolen", fmt.Sprint(i), network), begin)
		}
	}
	u.add(report("n1", "a", network), begin.Add(time.Second))
	u.add(report("n1", "a", started), begin.Add(2*time.Second))
	if n := u.byNode["stolen"]; len(n.pods) != maxUnconfirmedPods || len(n.order) != maxUnconfirmedPods ||
		len(n.order[0].reports) != maxUnconfirmedEvents {
		t.Errorf("%d pods, the first with %d reports", len(n.pods), len(n.order[0].reports))
	}
	if got, _ := u.take("n2", "a", begin); got != nil {
		t.Errorf("another node has %v", got)
	}
	got, waited := u.take("n1", "a", begin.Add(3*time.Second))
	events := []runtime.PodEvent{}
	for _, r := range got {
		events = append(events, r.Event)
	}
	if !slices.Equal(events, []runtime.PodEvent{network, started}) || waited != 2*time.Second {
		t.Errorf("took %v after %v", events, waited)
	}
	lost := map[string]int{}
	expire := func(at time.Duration) {
		u.expire(begin.Add(at), func(node string, pods int) { lost[node] += pods })
	}
	expire(unconfirmedAge - 1)
	if len(lost) != 0 {
		t.Errorf("lost %v too early", lost)
	}
	expire(unconfirmedAge)
	if len(lost) != 1 || lost["stolen"] != maxUnconfirmedPods || len(u.byNode) != 0 {
		t.Errorf("lost %v, kept %v", lost, u.byNode)
	}
}

// The comparison of a report with what the API server has said is all that a wake pays.
func BenchmarkReport(b *testing.B) {
	r := &Runtime{cfg: Config{Log: slog.New(slog.DiscardHandler)}, log: slog.New(slog.DiscardHandler)}
	s := &service{ident: ident{key: "default/app"}}
	p := &pod{service: s, node: "n1", rt: runtime.Pod{ID: "u"}}
	p.set(podDelivered)
	r.byUID = map[string]*pod{"u": p}
	report := runtime.PodReport{Event: created, Pod: runtime.Pod{ID: "u", Service: "default/app", Node: "n1"}}
	for b.Loop() {
		r.ReportPod(report)
	}
}
