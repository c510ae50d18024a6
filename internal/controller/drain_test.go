// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"wangell.loutres.me/internal/wire"
)

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
