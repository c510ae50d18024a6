// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/forecast"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// scheduled keeps a pod all the year, but for its last minute.
func scheduled(s *v1alpha1.WangellServiceSpec) {
	s.Sleep = &v1alpha1.Sleep{Schedule: []v1alpha1.WarmPeriod{{From: "@yearly", To: "59 23 31 12 *"}}}
}

func predicted(s *v1alpha1.WangellServiceSpec) { s.Sleep = &v1alpha1.Sleep{Predict: true} }

// hourly is the history of a service that was used every hour, the last time some time ago.
func hourly(ago time.Duration) string {
	var h forecast.History
	for i := 30; i >= 0; i-- {
		h.Used(time.Now().Add(-ago - time.Duration(i)*time.Hour))
	}
	return h.Encode()
}

// put puts a service of which an earlier controller knew something.
func (w *world) put(history string, s *v1alpha1.WangellService) {
	w.t.Helper()
	w.apply(s)
	if err := w.c.Delete(v1alpha1.KeyOf(s)); err != nil {
		w.t.Fatal(err)
	}
	w.until("removed", func() bool { return len(w.c.Status()) == 0 })
	a := w.addresses[v1alpha1.KeyOf(s)]
	if err := w.c.Update([]Service{{Spec: s, Addr: a, Announce: true, History: history}}, nil); err != nil {
		w.t.Fatal(err)
	}
}

func TestAScheduledServiceIsAwakeAlthoughUnused(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", scheduled))
	w.untilState("a", "Warm")
	a := w.vip("a")
	w.until("served", func() bool { return w.d.pods(a) == " serving" })
	if o := w.status("a").Outlook; o == nil || o.Wanted != status.WantedBySchedule || !o.Change.After(time.Now()) {
		t.Errorf("outlook %+v", o)
	}
	w.d.send(&wire.Idle{Service: a, LastPacket: 1})
	w.d.settle()
	if got := w.state("a"); got != "Warm" {
		t.Errorf("an idle service that is scheduled is %s", got)
	}

	// A user's wish goes before the schedule, until the service is used.
	if err := w.c.Sleep(t.Context(), "default/a"); err != nil {
		t.Fatal(err)
	}
	w.d.settle()
	if got := w.state("a"); got != "Cold" {
		t.Errorf("%s after it was put to sleep", got)
	}
	w.warm("a")
	if o := w.status("a").Outlook; o.Wanted != status.WantedBySchedule {
		t.Errorf("used, and not kept: %+v", o)
	}

	// Without the schedule it sleeps when it is idle.
	w.apply(newService("a"))
	w.d.set(func(d *fakeDaemon) { d.last[a] = 1 })
	w.d.send(&wire.Idle{Service: a, LastPacket: monotime.Now()})
	w.untilState("a", "Cold")
	if st := w.status("a"); st.Outlook != nil {
		t.Errorf("outlook %+v", st.Outlook)
	}
}

func TestAForecastStartsAPodBeforeTheNextUse(t *testing.T) {
	const prewarm = 54 * time.Minute
	for name, c := range map[string]struct {
		ago    time.Duration
		wanted bool
	}{
		"long before":     {30 * time.Minute, false},
		"a moment before": {prewarm - 2*time.Second, true},
		"meanwhile":       {prewarm + time.Minute, true},
		"it did not come": {3 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.put(hourly(c.ago), newService("a", predicted))
			if c.wanted {
				w.untilState("a", "Warm")
				w.d.settle()
				if o := w.status("a").Outlook; o.Wanted != status.WantedByForecast {
					t.Errorf("outlook %+v", o)
				}
				return
			}
			o := w.status("a").Outlook
			if w.state("a") != "Cold" || o.Basis != string(forecast.Histogram) || o.IdleTimes != 30 ||
				o.Prewarm != prewarm.Seconds() {
				t.Errorf("%s, outlook %+v", w.state("a"), o)
			}
			if name == "it did not come" {
				if !o.Change.IsZero() {
					t.Errorf("changes at %v", o.Change)
				}
			} else if in := time.Until(o.Change); in < 20*time.Minute || in > 25*time.Minute {
				t.Errorf("a pod is started in %v", in)
			}
		})
	}
}

func TestDaemonsReportAForeseenServiceIdleSoon(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", predicted), newService("b"))
	a, b := w.vip("a"), w.vip("b")
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	if got := [2]uint32{w.d.table[a].IdleSeconds, w.d.table[b].IdleSeconds}; got != [2]uint32{60, 300} {
		t.Errorf("idle after %v seconds", got)
	}
}

func TestWhatIsLearntIsKeptForTheNextController(t *testing.T) {
	var mu sync.Mutex
	learnt := map[v1alpha1.Key]string{}
	last := func() string {
		mu.Lock()
		defer mu.Unlock()
		return learnt["default/a"]
	}
	w := newWorld(t, func(c *Config) {
		c.OnHistory = func(k v1alpha1.Key, text string) {
			mu.Lock()
			defer mu.Unlock()
			learnt[k] = text
		}
	})
	w.put(hourly(30*time.Minute), newService("a", predicted))
	w.warm("a")
	w.until("it is kept", func() bool { return last() != "" })
	h, err := forecast.Decode(last())
	if err != nil || h.Len() != 31 || time.Since(h.Last()) > time.Minute {
		t.Errorf("%v, %d idle times, last used at %v", err, h.Len(), h.Last())
	}
	if got := w.status("a").Service.Status.UseHistory; got != last() {
		t.Errorf("status has %s, kept is %s", got, last())
	}
}

// A controller that finds pods running cannot know for how long a service was idle.
func TestTimeWithoutAControllerIsNotTakenForIdleness(t *testing.T) {
	w := newWorld(t, nil)
	w.put(hourly(55*time.Minute), newService("a", predicted))
	w.untilState("a", "Warm") // by the forecast
	a := w.vip("a")
	w.until("served", func() bool { return w.d.pods(a) == " serving" })
	w.d.send(&wire.Stats{Pods: []wire.PodStats{{Service: a, PodID: w.d.backend(a, 0).PodID, NewFlows: 1, OpenFlows: 1,
		LastPacket: monotime.Now()}}})
	w.until("the packet is known", func() bool { return w.status("a").Service.Status.LatestRequest != nil })
	if n := w.status("a").Outlook.IdleTimes; n != 30 {
		t.Errorf("%d idle times", n)
	}
}

func TestAHistoryThatCannotBeReadBeginsAnew(t *testing.T) {
	w := newWorld(t, nil)
	events := w.c.Subscribe(t.Context())
	w.put("nonsense", newService("a", predicted))
	for e := range events {
		if strings.Contains(e.Text, "history of uses") {
			break
		}
	}
	if o := w.status("a").Outlook; o.Basis != string(forecast.Unknown) || o.IdleTimes != 0 {
		t.Errorf("outlook %+v", o)
	}
}
