// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
)

func TestFittingPodsAreAdoptedAndOthersStopped(t *testing.T) {
	w := newWorld(t, nil)
	keep, other := newService("keep"), newService("other")
	w.rt.add(keep)  // keep-1
	w.rt.add(keep)  // keep-2, the newest
	w.rt.add(other) // other-3
	w.rt.add(newService("gone"))
	dead := w.rt.add(newService("dead"))
	dead.Started = 0
	w.rt.pods[dead.ID] = dead
	w.apply(keep, newService("other", func(s *v1alpha1.WangellServiceSpec) { s.Args = []string{"new"} }),
		newService("dead"))
	w.until("the others are stopped", func() bool { _, _, s := w.rt.state(); return len(s) == 4 })
	if running, _, _ := w.rt.state(); len(running) != 1 || running[0] != "keep-2" {
		t.Fatalf("running %v", running)
	}
	a := w.vip("keep")
	w.until("served", func() bool { return w.d.pods(a) == " serving" })
	w.d.mu.Lock()
	if got := w.d.history[0]; got != a.String()+": starting" {
		t.Errorf("first published as %q", got)
	}
	w.d.mu.Unlock()
	if w.state("keep") != "Warm" || w.state("other") != "Cold" || w.state("dead") != "Cold" {
		t.Errorf("keep %s, other %s, dead %s", w.state("keep"), w.state("other"), w.state("dead"))
	}
}

// The clients wait for the next controller.
func TestDetachDuringAWakeRefusesNoClient(t *testing.T) {
	w := newWorld(t, nil)
	gaveUp := make(chan struct{})
	w.rt.onStart = func(ctx context.Context, _ *v1alpha1.WangellService) error {
		<-ctx.Done()
		close(gaveUp)
		return ctx.Err()
	}
	w.apply(newService("a"))
	a := w.vip("a")
	w.d.syn(a)
	w.untilState("a", "Waking")
	reports := w.c.Subscribe(context.Background())
	w.c.Detach()
	<-gaveUp
	for e := range reports {
		if strings.Contains(e.Text, "failed") {
			t.Errorf("reported: %+v", e)
		}
	}
	if r := w.d.reasons(a); len(r) > 0 {
		t.Errorf("refused: %q", r)
	}
}

func TestNextControllerAdoptsWithHigherGenerations(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.warm("a")
	before := w.d.backends[a].Generation
	w.c.Detach()
	if running, _, _ := w.rt.state(); len(running) != 1 {
		t.Fatalf("running %v after Detach", running)
	}
	w.d.client.Close()
	w.boot(func(*Config) {})
	defer w.c.Detach()
	w.d = w.daemon()
	w.apply(newService("a"))
	if got := w.vip("a"); got != a {
		t.Errorf("had %v, now %v", a, got)
	}
	w.until("served", func() bool { return w.d.pods(a) == " serving" })
	if after := w.d.backends[a].Generation; after <= before {
		t.Errorf("generation %d after %d", after, before)
	}
	if _, started, stopped := w.rt.state(); len(started) != 1 || len(stopped) != 0 {
		t.Errorf("started %v, stopped %v", started, stopped)
	}
}

// A pod that runs already counts.
func TestMinReplicasRunWithoutAClient(t *testing.T) {
	w := newWorld(t, nil)
	least := func(s *v1alpha1.WangellServiceSpec) { s.MinReplicas = 1 }
	w.rt.add(newService("old", least)) // old-1
	w.apply(newService("old", least), newService("new", least))
	w.untilState("new", "Warm")
	w.untilState("old", "Warm")
	w.apply(newService("old", least), newService("new", least), newService("later", least))
	w.untilState("later", "Warm")
	if running, started, _ := w.rt.state(); len(running) != 3 || len(started) != 3 { // old-1 among them
		t.Errorf("running %v, started %v", running, started)
	}
	w.apply(newService("old", least), newService("new", least))
	w.apply(newService("old", least), newService("new", least), newService("later", least)) // while it is removed
	w.until("it has a pod again", func() bool {
		_, started, _ := w.rt.state()
		return len(started) == 4
	})
	w.untilState("later", "Warm")
}
