// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/wire"
)

// TestSlowDaemonSkipsWhatIsSuperseded changes a service often while a daemon does not handle messages: what waits for
// the daemon must not grow, and afterwards it has the newest state.
func TestSlowDaemonSkipsWhatIsSuperseded(t *testing.T) {
	w := newCluster(t, nil)
	a := w.put(newService("a"), 1)
	w.synced()
	w.until("the daemon has the service", func() bool { return w.d.has(a) && w.d2.has(a) })
	w.d.syn(a)
	w.untilPods(a, " serving")
	release := w.d2.stick(t)
	const changes = 10 * feedWindow
	var newest uint64
	for range changes {
		w.c.loop.call(func() {
			s := w.c.engine.table.byAddr[a]
			w.c.engine.step(s, lifecycle.Rejoined{})
			newest = s.machine.Generation()
		})
	}
	generation := func(d *fakeDaemon) uint64 {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.backends[a].Generation
	}
	w.until("the quick daemon has the newest state", func() bool { return generation(w.d) == newest })
	release()
	w.until("the slow daemon has the newest state", func() bool { return generation(w.d2) == newest })
	w.d2.mu.Lock()
	defer w.d2.mu.Unlock()
	if n := len(w.d2.history); n > 2*feedWindow {
		t.Errorf("the slow daemon got %d messages of %d changes", n, changes)
	}
	w.c.loop.call(func() {
		if n := len(w.c.engine.publisher.feed.log); n > 300 {
			t.Errorf("%d publications of one service are kept", n)
		}
	})
}

// TestDaemonThatJoinsGetsOnlyServicesWithPods counts the messages for a new daemon among services that sleep again.
func TestDaemonThatJoinsGetsOnlyServicesWithPods(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("awake"), newService("slept"))
	awake := w.warm("awake")
	slept := w.warm("slept")
	if err := w.c.Sleep(t.Context(), "default/slept"); err != nil {
		t.Fatal(err)
	}
	w.until("it is cold everywhere", func() bool { return w.d.pods(slept) == "" })
	d := w.daemonOn("n2")
	t.Cleanup(func() { d.client.Close() })
	w.until("the new daemon has the service that is awake", func() bool { return d.pods(awake) == " serving" })
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.backends[slept] != nil {
		t.Errorf("it was told of the other one: %+v", d.backends[slept])
	}
}

// TestAnswersDoNotHaveChangesSentOneByOne changes a service that has no pod on a node while that node's daemon has not
// answered yet: what is new waits for the next round, also after the answer.
func TestAnswersDoNotHaveChangesSentOneByOne(t *testing.T) {
	w := newCluster(t, nil)
	a := w.put(newService("a"), 1)
	w.synced()
	w.until("the daemons have the service", func() bool { return w.d.has(a) && w.d2.has(a) })
	w.d.syn(a)
	w.until("all have its pod", func() bool { return w.d.pods(a) == " serving" && w.d2.pods(a) == " serving" })
	f, other := w.c.engine.publisher.feed, w.d
	change := func() {
		s := w.c.engine.table.byAddr[a]
		w.c.engine.step(s, lifecycle.Rejoined{})
		if s.publication.homes["n1"] {
			other = w.d2
		}
	}
	reader := func() *reader {
		if other == w.d2 {
			return f.byNode["n2"]
		}
		return f.byNode["n1"]
	}
	w.c.loop.call(change) // finds out which one the other is
	w.until("no round is due", func() (due bool) { w.c.loop.call(func() { due = f.armed }); return !due })
	release := other.stick(t)
	w.c.loop.call(func() {
		f.next = time.Time{}
		change()
		f.round()
		f.armed, f.next = true, time.Now().Add(time.Hour)
		change()
	})
	release()
	lacks := func() (lacks bool) {
		w.until("it has answered", func() (answered bool) {
			w.c.loop.call(func() {
				r := reader()
				answered, lacks = r.inFlight == 0, r.next <= f.last
			})
			return answered
		})
		return lacks
	}
	if !lacks() {
		t.Error("its answer had the change sent")
	}
	w.c.loop.call(f.round)
	if lacks() {
		t.Error("a round did not have the change sent")
	}
}

func TestDrainedPodIsStoppedOnceEveryDaemonHasTheDrain(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n1", "n1"} })
	a := w.put(newService("a", upTo(2)), 1)
	w.synced()
	w.until("the table", func() bool { return w.d.has(a) })
	w.d.syn(a)
	w.untilPods(a, " serving")
	w.scale("a", 2)
	w.untilPods(a, " serving serving")
	release := w.d2.stick(t)
	w.scale("a", 1)
	w.until("n1 drains", func() bool { return strings.Contains(w.d.pods(a), "draining") })
	w.d.send(&wire.Trace{Service: a, PodID: wireID("a-1"), ReleasedN: 7}) // comes after its answer
	w.until("its answer is handled", func() bool { return w.status("a").LastWake.Released == 7 })
	if _, _, stopped := w.rt.state(); len(stopped) > 0 {
		t.Errorf("stopped %v although n2 may still give it flows", stopped)
	}
	release()
	w.untilPods(a, " serving")
	if running, _, stopped := w.rt.state(); len(running) != 1 || len(stopped) != 1 {
		t.Errorf("running %v, stopped %v", running, stopped)
	}
}

func TestDrainDoesNotWaitForADaemonThatLeft(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n1", "n1"} })
	a := w.put(newService("a", upTo(2)), 1)
	w.synced()
	w.scale("a", 2)
	w.untilPods(a, " serving serving")
	release := w.d2.stick(t)
	w.scale("a", 1)
	w.until("n1 drains", func() bool { return strings.Contains(w.d.pods(a), "draining") })
	go w.d2.client.Close() // it waits for its handler
	w.until("one is left", func() bool { return w.d.pods(a) == " serving" })
	release()
}
