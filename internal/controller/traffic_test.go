// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/sources"
	"wangell.loutres.me/internal/wire"
)

// splitting makes a service lead its requests to two others.
func splitting(first int32) func(*v1alpha1.WangellServiceSpec) {
	return func(s *v1alpha1.WangellServiceSpec) {
		*s = v1alpha1.WangellServiceSpec{Port: 80, Traffic: []v1alpha1.Revision{
			{Revision: "v1", Percent: first}, {Revision: "v2", Percent: 100 - first, Tag: "canary"},
		}}
	}
}

// A revision that is deleted gets no more requests, and its pods end once no daemon gives them any.
func TestDeletedRevisionIsDrained(t *testing.T) {
	requests := func(s *v1alpha1.WangellServiceSpec) { s.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest} }
	v1, v2, shop := newService("v1", requests), newService("v2", requests), newService("shop", splitting(90))
	alone := newService("shop", func(s *v1alpha1.WangellServiceSpec) {
		*s = v1alpha1.WangellServiceSpec{Port: 80, Traffic: []v1alpha1.Revision{{Revision: "v2", Percent: 100}}}
	})
	for name, steps := range map[string][][]*v1alpha1.WangellService{
		"with its traffic": {{alone, v2}}, "alone": {{shop, v2}}, "after its traffic": {{alone, v1, v2}, {alone, v2}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.apply(shop, v1, v2)
			a := w.warm("v1")
			w.d.set(func(d *fakeDaemon) { d.deaf, d.open = true, 1 })
			for _, services := range steps {
				w.apply(services...)
			}
			w.until("its pod is drained", func() bool { return w.d.pods(a) == " draining" })
			leaves := false
			w.d.set(func(d *fakeDaemon) { leaves = d.table[a].Requests.Leaving })
			if !leaves {
				t.Error("the daemon does not know that the revision is being removed")
			}
			quiet := func(open uint32) {
				var generation uint64
				w.d.set(func(d *fakeDaemon) { generation = d.backends[a].Generation })
				w.d.send(&wire.Quiet{Service: a, PodID: wireID("v1-1"), Generation: generation, OpenFlows: open})
			}
			quiet(1)
			w.warm("v2") // what came before it has been handled
			if _, _, stopped := w.rt.state(); len(stopped) > 0 {
				t.Errorf("stopped %v although it has not answered all requests", stopped)
			}
			w.d.send(&wire.Stats{Pods: []wire.PodStats{{Service: a, PodID: wireID("v1-1"), LastPacket: monotime.Now()}}})
			w.until("it is gone", func() bool { return !w.d.has(a) })

			// Back again, it gets requests.
			w.d.set(func(d *fakeDaemon) { d.deaf = false })
			w.apply(shop, v1, v2)
			a = w.vip("v1")
			w.d.set(func(d *fakeDaemon) { leaves = d.table[a].Requests.Leaving })
			if leaves {
				t.Error("a revision that is back is being removed")
			}
		})
	}
}

func TestServiceWithTrafficHasNoPods(t *testing.T) {
	w := newWorld(t, nil)
	requests := func(s *v1alpha1.WangellServiceSpec) { s.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest} }
	v1, v2 := newService("v1", requests), newService("v2", requests)
	w.apply(newService("shop", requests), v1, v2)
	shop := w.warm("shop")

	// Its pods end, and its daemons learn where its requests go.
	w.apply(newService("shop", splitting(90), func(s *v1alpha1.WangellServiceSpec) {
		s.Sticky = &v1alpha1.Sticky{Cookie: "revision", MaxAge: 60}
	}), v1, v2)
	w.until("its pods are gone", func() bool { return len(w.status("shop").Pods) == 0 })
	entry := func() (e wire.Service) {
		w.d.set(func(d *fakeDaemon) { e = d.table[shop] })
		return e
	}
	w.until("the daemon knows its revisions", func() bool { return !entry().Requests.Traffic.Empty() })
	sticky, revisions := entry().Requests.Traffic.Revisions()
	if want := (wire.Sticky{Kind: wire.StickyCookie, Name: "revision", MaxAgeSeconds: 60}); sticky != want {
		t.Errorf("sticky %+v", sticky)
	}
	if !slices.Equal(revisions, []wire.Revision{
		{Service: "default/v1", Percent: 90}, {Service: "default/v2", Percent: 10, Tag: "canary"},
	}) {
		t.Errorf("revisions %+v", revisions)
	}
	if st := w.status("shop"); st.Service.Status.State != "Warm" || !st.Slept.Since.IsZero() {
		t.Errorf("a service with traffic: %s, slept %+v", st.Service.Status.State, st.Slept)
	}

	// Neither a daemon nor a user wakes it or puts it to sleep.
	w.d.syn(shop)
	for name, err := range map[string]error{
		"scale": w.c.Scale("default/shop", 1, "a test"), "wake": w.c.Wake(t.Context(), "default/shop"),
		"sleep": w.c.Sleep(t.Context(), "default/shop"),
	} {
		if err == nil || !strings.Contains(err.Error(), "name one of its revisions, v1") {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.warm("v1") // what came before it has been handled
	if st := w.status("shop"); len(st.Pods) > 0 || st.Desired > 0 {
		t.Errorf("pods of a service with traffic: %+v", st)
	}

	// Without traffic it is as any other.
	w.apply(newService("shop", requests), v1, v2)
	w.until("the daemon knows that it has pods", func() bool { return entry().Requests.Traffic.Empty() })
	w.warm("shop")
}

// Clients come to a revision by a service with traffic only if the revision lets them in as well: by its allowFrom and
// by its policy, whichever of the services comes or changes.
func TestTrafficDoesNotLeadAroundTheRestrictionsOfRevisions(t *testing.T) {
	w := newWorld(t, nil)
	revision := func(name string, from ...string) *v1alpha1.WangellService {
		return newService(name, func(s *v1alpha1.WangellServiceSpec) {
			s.Balancing, s.AllowFrom = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest}, from
		})
	}
	shop := newService("shop", splitting(90))
	w.apply(revision("v1"), revision("v2"), shop)
	rules := func() (text string) {
		shop := w.vip("shop")
		w.d.set(func(d *fakeDaemon) {
			s, ok := d.table[shop]
			switch sources, _ := s.Sources.MarshalText(); {
			case !ok:
				text = "unknown"
			case s.Flags&wire.FlagSources == 0:
				text = "all"
			default:
				text = string(sources)
			}
		})
		return text
	}
	until := func(what, want string) {
		t.Helper()
		w.until(what+": "+want, func() bool { return rules() == want })
	}
	until("nothing is restricted", "all")
	v1 := revision("v1", "10.0.0.0/8", "192.0.2.0/24")
	w.apply(v1, revision("v2"), shop)
	until("one revision", "+10.0.0.0/8 +192.0.2.0/24")
	v2 := revision("v2", "192.0.2.0/25", "198.51.100.0/24")
	w.apply(v1, v2, shop)
	until("both revisions", "+192.0.2.0/25")
	policy := sources.Of(netip.MustParsePrefix("192.0.2.0/26"))
	if err := w.c.Restrict("default/v1", &policy); err != nil {
		t.Fatal(err)
	}
	until("a policy of a revision", "+192.0.2.0/26")
	if err := w.c.Restrict("default/v1", nil); err != nil {
		t.Fatal(err)
	}
	until("no policy", "+192.0.2.0/25")
	own := newService("shop", splitting(90), func(s *v1alpha1.WangellServiceSpec) {
		s.AllowFrom = []string{"192.0.2.0/30"}
	})
	w.apply(v1, v2, own)
	until("the service itself", "+192.0.2.0/30")
	w.apply(v1, v2, shop)
	w.apply(v2, shop)
	until("a revision that is gone", "+192.0.2.0/25 +198.51.100.0/24")
	w.apply(v1, v2, shop)
	until("it is back", "+192.0.2.0/25")
	w.apply(v1, v2, newService("shop"))
	until("no traffic", "all")
}
