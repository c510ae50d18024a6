// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
)

var start = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

func at(seconds int, services ...status.Status) moment {
	return moment{at: start.Add(time.Duration(seconds) * time.Second), services: services}
}

func TestTickHasOnlyWhatHasChanged(t *testing.T) {
	b := newBoard()
	a, z := warm("a", 2), cold("z", start)
	first := b.next(at(0, a, z))
	if len(first.Services) != 2 || len(b.services["default/a"].detail.Pods) != 2 {
		t.Fatalf("first: %+v", first)
	}
	if idle := b.next(at(1, a, z)); !reflect.DeepEqual(idle, Tick{Time: start.Add(time.Second).UnixMilli()}) {
		t.Errorf("nothing has changed: %+v", idle)
	}
	a.Traffic.NewFlows, a.Traffic.OpenFlows = 30, 4
	a.Pods[1].Traffic.NewFlows = 30
	tick := b.next(at(3, a, z))
	id := b.services["default/a"].row.ID
	if want := []Load{{float64(id), 4, 15, 0, 0, 0}}; !reflect.DeepEqual(tick.Loads, want) || tick.Services != nil {
		t.Errorf("load: %+v, want %v", tick, want)
	}
	detail := b.services["default/a"].detail
	if len(detail.Loads) != 1 || detail.Loads[0][2] != 15 || detail.Pods != nil || detail.Count != [4]uint16{2, 0, 0, 0} {
		t.Errorf("pods: %+v", detail)
	}
	a.Pods = a.Pods[:1]
	tick = b.next(at(4, a))
	if len(tick.Gone) != 1 || b.services["default/z"] != nil || len(b.services["default/a"].detail.Gone) != 1 {
		t.Errorf("gone: %+v, %+v", tick, b.services["default/a"].detail)
	}
}

func TestLoadsAreRequestsWhereTheyAreBalanced(t *testing.T) {
	b := newBoard()
	a := warm("a", 1)
	a.Service.Spec.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest}
	b.next(at(0, a))
	a.Traffic = status.Traffic{OpenFlows: 7, NewFlows: 70, BytesIn: 30, OpenRequests: 3, RequestsPerSecond: 12.5}
	a.Pods[0].Traffic = a.Traffic
	tick := b.next(at(1, a))
	e := b.services["default/a"]
	if want := (Load{float64(e.row.ID), 3, 12.5, 30, 0, 0}); !e.row.Requests || tick.Loads[0] != want ||
		e.detail.Loads[0][2] != 12.5 {
		t.Errorf("%+v, %+v, want %v", tick, e.detail, want)
	}
	if h := b.all("default/a", whole{}).Watched.History; h.Rate[1] != 12.5 || h.Open[1] != 3 {
		t.Errorf("history %+v", h)
	}
}

// A service that is removed and added again has another number, so that nothing of the old one is taken for its own.
func TestServiceThatComesBackIsANewOne(t *testing.T) {
	b := newBoard()
	b.next(at(0, warm("a", 1)))
	id := b.services["default/a"].row.ID
	b.next(at(1))
	if tick := b.next(at(2, warm("a", 1))); len(tick.Services) != 1 || tick.Services[0].ID == id {
		t.Errorf("%+v, was %d", tick, id)
	}
}

func TestCountersThatFallBeganAnew(t *testing.T) {
	b := newBoard()
	a := warm("a", 1)
	a.Traffic.NewFlows = 1000
	b.next(at(0, a))
	a.Traffic.NewFlows = 8
	b.next(at(2, a))
	if got := b.services["default/a"].load[2]; got != 4 {
		t.Errorf("%v connections/s, want 4", got)
	}
}

func TestHistoryOfAServiceEndsNow(t *testing.T) {
	b := newBoard()
	a, idle := warm("a", 1), cold("idle", start)
	b.next(at(0, idle))
	for i := 1; i <= span+5; i++ {
		a.Traffic.NewFlows += 7
		a.Pods[0].Traffic.NewFlows += 7
		b.next(at(i, a, idle))
	}
	w := b.all("default/a", whole{}).Watched
	last := len(w.History.Times) - 1
	if last != span-1 || w.History.Times[last] != start.Add((span+5)*time.Second).UnixMilli() ||
		len(w.History.Rate) != span || w.History.Rate[last] != 7 || w.History.Good[last] != 1 ||
		len(w.History.Pods[w.Pods[0].ID]) != span {
		t.Errorf("%d times until %v, %d rates", last+1, w.History.Times[last], len(w.History.Rate))
	}
	if got := b.all("default/idle", whole{}).Watched.History; got.Rate != nil || len(got.Times) != span {
		t.Errorf("a service that was never in use: %+v", got.Rate)
	}
	if b.all("default/nothing", whole{}).Watched != nil {
		t.Error("a service that is not there is watched")
	}
}

// What is kept of a service ends once it was idle for the whole span, and with the service.
func TestHistoryIsForgotten(t *testing.T) {
	b := newBoard()
	b.next(at(0, warm("a", 3), warm("b", 1)))
	if len(b.history.services) != 2 || len(b.history.pods) != 4 {
		t.Fatalf("%d, %d", len(b.history.services), len(b.history.pods))
	}
	for i := 1; i <= span; i++ {
		b.next(at(i, cold("a", start)))
	}
	if len(b.history.services) != 0 || len(b.history.pods) != 0 {
		t.Errorf("%d services and %d pods are kept", len(b.history.services), len(b.history.pods))
	}
}

func TestHistoryIsBounded(t *testing.T) {
	h := newHistory()
	h.begin(start)
	for i := range maxServices + 10 {
		h.service(i, sample{open: 1})
	}
	for i := range maxPods + 10 {
		h.pod(i, 1)
	}
	if len(h.services) != maxServices || len(h.pods) != maxPods {
		t.Errorf("%d services, %d pods", len(h.services), len(h.pods))
	}
}

func TestPodsAreCountedByWhatBecomesOfThem(t *testing.T) {
	s := warm("a", 5)
	for i, state := range []lifecycle.PodState{
		lifecycle.PodServing, lifecycle.PodStarting, lifecycle.PodDraining, lifecycle.PodStopping, lifecycle.PodExited,
	} {
		s.Pods[i].State = state.String()
	}
	if got, want := countOf(s), (Count{Good: 1, Failed: 1, Coming: 1, Going: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	s.Pods, s.Service.Status.State = nil, lifecycle.Failed.String()
	if got, want := countOf(s), (Count{Failed: 1}); got != want {
		t.Errorf("failed: %+v, want %+v", got, want)
	}
}

func TestWakeIsSentOnceMoreWhenItGoesOn(t *testing.T) {
	l := wakeLog{}
	w := woken("default/a", 1, 1)
	early := w
	early.Phases, early.Result = w.Phases[:4], lifecycle.ResultRunning
	if got := l.news([]lifecycle.Waterfall{early}); len(got) != 1 || len(got[0].Phases) != 4 {
		t.Errorf("the beginning: %+v", got)
	}
	if got := l.news([]lifecycle.Waterfall{early}); got != nil {
		t.Errorf("nothing has changed: %+v", got)
	}
	got := l.news([]lifecycle.Waterfall{w})
	if len(got) != 1 || len(got[0].Phases) != len(w.Phases) || got[0].Result != "warm" {
		t.Errorf("the end: %+v", got)
	}
	last := got[0].Phases[len(got[0].Phases)-1]
	if lifecycle.PhaseNames()[last[0]] != lifecycle.PhaseFirstByte || last[1] != w.Total().Microseconds() {
		t.Errorf("last phase %v", last)
	}
	if l.news(nil); len(l) != 0 {
		t.Errorf("%d wakes are remembered", len(l))
	}
}

func TestEventsAreBounded(t *testing.T) {
	var l eventLog
	for i := range 5 * keptEvents {
		l.add(status.Event{Kind: status.EventReport, Text: fmt.Sprint(i) + strings.Repeat("x", 2*maxText)})
		l.add(status.Event{Kind: status.EventPull})
	}
	if got := l.last(); len(got) != keptEvents || cap(l.kept) > 8*keptEvents || len(got[0].Text) != maxText {
		t.Errorf("%d events of %d bytes", len(got), len(got[0].Text))
	}
	if got := l.news(); len(got) != keptEvents || !strings.HasPrefix(got[keptEvents-1].Text, fmt.Sprint(5*keptEvents-1)) {
		t.Errorf("%d news", len(got))
	}
	if got := l.news(); len(got) != 0 {
		t.Errorf("%d news again", len(got))
	}
	l.add(status.Event{Kind: status.EventState, State: "Warm"})
	if got := l.news(); len(got) != 1 || got[0].Text != "Warm" {
		t.Errorf("%+v", got)
	}
}

func TestRoundKeepsThreeDigits(t *testing.T) {
	for v, want := range map[float64]float64{0: 0, 0.012345: 0.0123, 1.23456: 1.23, 99.96: 100, 12345.6: 12346} {
		if got := round(v); got != want {
			t.Errorf("%v: %v, want %v", v, got, want)
		}
	}
}

// 1,000 busy services, and the 200 pods of the one that is watched.
func TestUpdateOfManyServicesIsSmall(t *testing.T) {
	f := manyServices()
	// Everything changes from one update to the next.
	n := uint64(0)
	f.step = func(f *fakeSource) {
		n++
		for i := range f.services {
			s := &f.services[i]
			more := 1000 + uint64(i)*n%977
			s.Traffic.NewFlows += more
			s.Traffic.BytesIn += more * 421
			s.Traffic.BytesOut += more * 3163
			s.Traffic.OpenFlows = uint32(more)
			s.Service.Status.LatestRequest = &metav1.Time{Time: start.Add(time.Duration(n) * time.Second)}
			for k := range s.Pods {
				p := &s.Pods[k].Traffic
				more := 100 + n*uint64(1+k%50)
				p.NewFlows, p.BytesIn, p.BytesOut = p.NewFlows+more, p.BytesIn+more*421, p.BytesOut+more*3163
				p.OpenFlows = uint32(more)
			}
		}
	}
	b := newBoard()
	first := b.next(moment{at: start, services: f.Status()})
	b.next(moment{at: start.Add(time.Second), services: f.Status()})
	tick := b.next(moment{at: start.Add(2 * time.Second), services: f.Status()})
	if len(tick.Loads) != 1002 || len(b.services["default/crowd"].detail.Loads) != 200 {
		t.Fatalf("%d loads of services, %d of pods", len(tick.Loads), len(b.services["default/crowd"].detail.Loads))
	}
	size := len(message("tick", tick)) + len(message("pods", b.services["default/crowd"].detail))
	all := len(message("all", b.all("default/crowd", whole{})))
	t.Logf("an update has %d bytes, the first message %d", size, all)
	if size > 80_000 || all > 500_000 || len(first.Services) != 1002 {
		t.Errorf("an update has %d bytes, the first message %d", size, all)
	}
}

func BenchmarkUpdate(b *testing.B) {
	f := manyServices()
	f.step = nil
	board := newBoard()
	board.next(moment{at: start, services: f.Status()})
	for b.Loop() {
		busy(f)
		_, _ = json.Marshal(board.next(moment{at: board.at.Add(time.Second), services: f.services}))
	}
}
