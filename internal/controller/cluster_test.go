// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/sources"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

func TestServicesArePutAndDeletedOneByOne(t *testing.T) {
	w := newCluster(t, nil)
	a := w.put(newService("a"), 1)
	if err := w.c.Scale("default/a", 1, ""); !errors.Is(err, ErrNotSynced) {
		t.Errorf("Scale before Synced: %v", err)
	}
	w.d.syn(a) // not refused: the daemon asks again when it has the table
	if w.c.Ready() == nil {
		t.Error("ready before Synced")
	}
	w.synced()
	w.until("the table", func() bool { return w.d.has(a) && w.d2.has(a) })
	if got := w.d.reasons(a); len(got) > 0 {
		t.Errorf("refused: %v", got)
	}
	b := w.put(newService("b", func(s *v1alpha1.WangellServiceSpec) {
		s.SessionAffinity = "ClientIP"
		s.Balancing = &v1alpha1.Balancing{LocalityPreference: v1alpha1.LocalityLocal}
	}), 2)
	w.until("the new one", func() bool { return w.d.has(b) })
	w.d.mu.Lock()
	if e := w.d.table[b]; e.Flags != wire.FlagAnnounce|wire.FlagAffinity|wire.FlagPreferLocal ||
		e.Retries != v1alpha1.DefaultRetries {
		t.Errorf("entry %+v", e)
	}
	w.d.mu.Unlock()
	requests := w.put(newService("shop", func(s *v1alpha1.WangellServiceSpec) {
		s.Balancing = &v1alpha1.Balancing{
			Level: v1alpha1.LevelRequest, Protocol: v1alpha1.ProtocolHTTP2, MaxRequestsPerPod: 7, Warmup: 30,
			ClientAddress: v1alpha1.ClientAddressTransparent, TrustedProxies: []string{"10.0.0.0/8"},
		}
	}), 4)
	w.until("the one that balances requests", func() bool { return w.d.has(requests) })
	w.d.mu.Lock()
	want := wire.Requests{
		Protocol: wire.ProtocolHTTP2, ClientIdleSeconds: 3600, MaxPerPod: 7, WarmupSeconds: 30, Transparent: true,
		TrustedProxies: wire.NewSources([]sources.Rule{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Allow: true}}),
	}
	if e := w.d.table[requests]; e.Flags&wire.FlagRequests == 0 || e.Requests != want {
		t.Errorf("entry %+v", e)
	}
	w.d.mu.Unlock()
	other := newService("c")
	if err := w.c.Put(Service{Spec: other, Addr: b.Addr()}); err == nil || !strings.Contains(err.Error(), "is already "+
		"that of service default/b") {
		t.Errorf("an address twice: %v", err)
	}
	if err := w.c.Put(Service{Spec: other}); err == nil {
		t.Error("no address: accepted")
	}
	moved := w.put(newService("b"), 3)
	w.until("moved", func() bool { return w.d.has(moved) && !w.d.has(b) })
	if err := w.c.Delete("default/b"); err != nil {
		t.Error(err)
	}
	w.until("gone", func() bool { return !w.d.has(moved) && len(w.c.Status()) == 2 })
	if err := w.c.Delete("default/b"); err != nil {
		t.Errorf("Delete twice: %v", err)
	}
	w.put(other, 3) // its address is free again
	if _, ok := w.c.StatusOf("default/c"); !ok {
		t.Error("no status")
	}
}

// A service that is deleted and put again under its name cannot be scaled before the old one is gone.
func TestScaleWaitsForTheEndOfTheServiceBefore(t *testing.T) {
	w := newCluster(t, nil)
	w.put(newService("a"), 1)
	w.synced()
	w.scale("a", 1)
	w.untilState("a", "Warm")
	gone := make(chan struct{})
	w.rt.onStop = func(context.Context, string) error { <-gone; return nil }
	if err := w.c.Delete("default/a"); err != nil {
		t.Fatal(err)
	}
	w.put(newService("a"), 1)
	if err := w.c.Scale("default/a", 1, "tested"); err == nil || !strings.Contains(err.Error(), "still being removed") {
		t.Errorf("scaled while the old one is there: %v", err)
	}
	if st, ok := w.c.StatusOf("default/a"); !ok || !st.Removing {
		t.Errorf("while the old one is there: %t, %+v", ok, st)
	}
	close(gone)
	w.until("the new one is scaled", func() bool { return w.c.Scale("default/a", 1, "tested") == nil })
	if st, _ := w.c.StatusOf("default/a"); st.Removing {
		t.Error("the new one counts as being removed")
	}
	w.untilState("a", "Warm")
}

func TestPodsOnSeveralNodesServeAndSleep(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n2", "n1", "n2"} })
	a := w.put(newService("a", upTo(3)), 1)
	w.synced()
	w.until("the table", func() bool { return w.d.has(a) && w.d2.has(a) })
	w.d.syn(a)
	w.untilPods(a, " serving")
	home, edge := w.d2.backend(a, 0), w.d.backend(a, 0)
	// The balancing of a warm service may change at any time, and its pods stay.
	retries := int32(0)
	w.put(newService("a", upTo(3), func(s *v1alpha1.WangellServiceSpec) {
		s.SessionAffinity, s.Retries = "ClientIP",
			&retries
	}), 1)
	for _, d := range []*fakeDaemon{w.d, w.d2} {
		w.until("the changed table", func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.table[a].Flags == wire.FlagAnnounce|wire.FlagAffinity && d.table[a].Retries == 0
		})
	}
	if p := w.d.backend(a, 0); p.PodID != edge.PodID || w.d.pods(a) != " serving" {
		t.Errorf("pods after the change: %s %+v", w.d.pods(a), p)
	}
	if home.Node != "n2" || home.NodeAddr != nodeAddr("n2") || home.Netns == "" || edge.Netns != "" ||
		edge.NodeAddr != home.NodeAddr {
		t.Errorf("home has %+v, edge has %+v", home, edge)
	}
	w.scale("a", 3)
	w.untilPods(a, " serving serving serving")
	if st := w.status("a"); st.Serving != 3 || st.Desired != 3 || st.Service.Status.Replicas != 3 ||
		st.LastWake == nil || st.Pods[0].Node != "n2" {
		t.Errorf("status %+v", st)
	}

	// The service is idle once both nodes report it.
	last := monotime.Now()
	idle := &wire.Idle{Service: a, LastPacket: last}
	for _, d := range []*fakeDaemon{w.d, w.d2} {
		d.set(func(d *fakeDaemon) { d.last[a] = last })
	}
	w.d.send(idle)
	w.d.send(&wire.Trace{Service: a, PodID: home.PodID, ReleasedN: 7}) // comes after it
	w.until("the first is handled", func() bool { return w.status("a").LastWake.Released == 7 })
	if w.state("a") != "Warm" {
		t.Errorf("%s although only one node is idle", w.state("a"))
	}
	w.d2.send(idle)
	w.untilState("a", "Cold")
	w.untilPods(a, "")
	if running, _, stopped := w.rt.state(); len(running) != 0 || len(stopped) != 3 {
		t.Errorf("running %v, stopped %v", running, stopped)
	}
}

func TestRolloutReplacesThePodWithoutAGap(t *testing.T) {
	w := newCluster(t, nil)
	a := w.put(newService("a"), 1)
	w.synced()
	w.scale("a", 1)
	w.untilPods(a, " serving")
	newer := newService("a", func(s *v1alpha1.WangellServiceSpec) { s.Args = []string{"-v"} })
	w.put(newer, 1)
	w.cluster.next = []string{"n2"}
	p := w.cluster.place(newer)
	p.Started = 0
	w.cluster.appeared <- p
	w.cluster.appeared <- p // the same may be reported twice
	w.untilPods(a, " serving serving")
	w.cluster.leaving <- runtime.Leave{PodID: "a-1"}
	w.untilPods(a, " draining serving")
	if _, started, stopped := w.rt.state(); len(started) != 2 || len(stopped) != 0 {
		t.Errorf("started %v, stopped %v", started, stopped)
	}
	w.rt.exits <- runtime.Exit{PodID: "a-1", Service: "default/a", Code: 143}
	w.untilPods(a, " serving")
	if w.state("a") != "Warm" || w.status("a").Service.Status.Message != "" {
		t.Errorf("status %+v", w.status("a"))
	}
}

func TestEvictedPodIsReplaced(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n1", "n2"} })
	a := w.put(newService("a"), 1)
	w.synced()
	w.scale("a", 1)
	w.untilPods(a, " serving")
	events := w.c.Subscribe(t.Context())
	const why = "pod a-1 was evicted through the API"
	w.cluster.leaving <- runtime.Leave{PodID: "a-1", Cause: why}
	for e := range events {
		if e.Text == why+": it is drained" {
			break
		}
	}
	w.untilPods(a, " draining serving")
	if b := w.d.backend(a, 1); b.Node != "n2" {
		t.Errorf("the next one is %+v", b)
	}
}

// The pod counts again once its node is back.
func TestPodOfALostNodeIsReplaced(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n2", "n1"} })
	a := w.put(newService("a"), 1)
	w.synced()
	w.scale("a", 1)
	w.untilPods(a, " serving")
	w.d2.client.Close()
	w.until("the other node serves", func() bool { return w.d.pods(a) == " draining serving" })
	w.d2 = w.daemonOn("n2")
	w.until("one of them goes", func() bool { return w.d.pods(a) == " serving" && w.d2.pods(a) == " serving" })
	if running, _, stopped := w.rt.state(); len(running) != 1 || len(stopped) != 1 {
		t.Errorf("running %v, stopped %v", running, stopped)
	}
}

// A new leader says that its status is incomplete until daemons have reported every pod that it inherits.
func TestInheritedPodsAreUnreportedUntilTheyAppear(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next, r.inherited = []string{"n1", "n2"}, []string{"a-1", "a-2"} })
	service := newService("a", upTo(3))
	a := w.put(service, 1)
	w.synced()
	for i := range 2 {
		if st, ok := w.c.StatusOf("default/a"); !ok || !st.Unreported {
			t.Errorf("%d of 2 pods reported: %+v, %v", i, st, ok)
		}
		w.cluster.appeared <- w.cluster.place(service)
		w.untilCounts(a, "serving", i+1)
	}
	if st, _ := w.c.StatusOf("default/a"); st.Unreported || st.Desired != 2 {
		t.Errorf("both reported: unreported %v, desired %d", st.Unreported, st.Desired)
	}
}
