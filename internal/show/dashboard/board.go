// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
)

// Tick holds the changes since the last one. Every browser gets the part that it may see.
type Tick struct {
	Time     int64  `json:"t"` // Unix milliseconds
	Services []Row  `json:"s,omitempty"`
	Gone     []int  `json:"gone,omitempty"` // services that were removed
	Loads    []Load `json:"l,omitempty"`
	// Wakes are the wakes with news.
	Wakes    []Wake             `json:"w,omitempty"`
	Events   []Event            `json:"e,omitempty"`
	Pressure *[]status.Pressure `json:"p,omitempty"` // nil if it has not changed

	goneFrom, loadsFrom []string // the namespaces of Gone and Loads
}

// Detail holds the changes of the pods of one service.
type Detail struct {
	Pods  []Pod  `json:"p,omitempty"`
	Gone  []int  `json:"gone,omitempty"`
	Loads []Load `json:"l,omitempty"`
	// Count is the number of good, failed, coming and going pods.
	Count [4]uint16 `json:"c"`
}

// All is everything, for a browser that connects.
type All struct {
	Tick
	// Phases are the names of the phases of a wake.
	Phases []lifecycle.PhaseName `json:"phases"`
	// Watched is the detail of the service that the browser watches, with its past; nil if there is no such service.
	Watched *Watched `json:"watched,omitempty"`
}

// Watched is the detail of a service with its past.
type Watched struct {
	ID int `json:"id"`
	Detail
	History History `json:"h"`
}

// moment is the state of the source at one time.
type moment struct {
	at       time.Time
	services []status.Status
	wakes    []lifecycle.Waterfall
	pressure []status.Pressure
}

// board is the state that browsers have, from which the news follows.
type board struct {
	at       time.Time
	lastID   int
	services map[string]*entry
	// namespaces are those that have services.
	namespaces map[string]bool
	pressure   []status.Pressure
	wakes      wakeLog
	kept       []lifecycle.Waterfall // the newest wakes, for browsers that connect
	events     eventLog
	history    *history
}

// entry is a service on the board.
type entry struct {
	row     Row
	load    Load
	traffic status.Traffic
	pods    map[string]*podEntry
	detail  Detail // what is new of the pods
}

// podEntry is a pod on the board.
type podEntry struct {
	pod     Pod
	load    Load
	traffic status.Traffic
}

func newBoard() *board {
	return &board{services: map[string]*entry{}, wakes: wakeLog{}, history: newHistory()}
}

// id returns a new number for a service or a pod.
func (b *board) id() int {
	b.lastID++
	return b.lastID
}

// next moves to the next moment, and returns the changes.
func (b *board) next(m moment) Tick {
	elapsed := m.at.Sub(b.at)
	if b.at.IsZero() {
		elapsed = 0
	}
	b.at = m.at
	b.history.begin(m.at)
	t := Tick{Time: m.at.UnixMilli(), Wakes: b.wakes.news(m.wakes), Events: b.events.news()}
	b.kept = m.wakes
	there := make(map[string]bool, len(m.services))
	b.namespaces = map[string]bool{}
	for _, s := range m.services {
		b.namespaces[s.Service.Namespace] = true
		name := s.Service.Namespace + "/" + s.Service.Name
		there[name] = true
		b.service(&t, name, s, elapsed)
	}
	for name, e := range b.services {
		if !there[name] {
			t.Gone, t.goneFrom = append(t.Gone, e.row.ID), append(t.goneFrom, e.row.Namespace)
			delete(b.history.services, e.row.ID)
			for _, p := range e.pods {
				delete(b.history.pods, p.pod.ID)
			}
			delete(b.services, name)
		}
	}
	if !slices.Equal(m.pressure, b.pressure) {
		b.pressure = m.pressure
		list := append([]status.Pressure{}, m.pressure...)
		t.Pressure = &list
	}
	return t
}

// service takes the next status of a service.
func (b *board) service(t *Tick, name string, s status.Status, elapsed time.Duration) {
	e := b.services[name]
	if e == nil {
		// What it counted before it was first seen is not new.
		e = &entry{row: Row{ID: b.id()}, traffic: s.Traffic, pods: map[string]*podEntry{}}
		b.services[name] = e
	}
	if row := rowOf(e.row.ID, s); row != e.row {
		e.row = row
		t.Services = append(t.Services, row)
	}
	load := loadOf(e.row.ID, e.traffic, s.Traffic, elapsed, latestOf(s), e.row.Requests)
	e.traffic = s.Traffic
	if load != e.load {
		e.load = load
		t.Loads, t.loadsFrom = append(t.Loads, load), append(t.loadsFrom, e.row.Namespace)
	}
	count := countOf(s)
	b.history.service(e.row.ID, sample{float32(load[2]), uint32(load[1]), count})
	e.detail = Detail{Count: [4]uint16{count.Good, count.Failed, count.Coming, count.Going}}
	b.pods(e, s.Pods, elapsed)
}

// pods updates the pods of a service.
func (b *board) pods(e *entry, pods []status.Pod, elapsed time.Duration) {
	there := make(map[string]bool, len(pods))
	for _, s := range pods {
		if s.ID == "" {
			continue // it has no ID yet
		}
		there[s.ID] = true
		p := e.pods[s.ID]
		if p == nil {
			p = &podEntry{pod: Pod{ID: b.id()}}
			e.pods[s.ID] = p
		}
		if pod := podOf(p.pod.ID, s); pod != p.pod {
			p.pod = pod
			e.detail.Pods = append(e.detail.Pods, pod)
		}
		load := loadOf(p.pod.ID, p.traffic, s.Traffic, elapsed, 0, e.row.Requests)
		p.traffic = s.Traffic
		if load != p.load {
			p.load = load
			e.detail.Loads = append(e.detail.Loads, load)
		}
		b.history.pod(p.pod.ID, load[2])
	}
	for id, p := range e.pods {
		if !there[id] {
			e.detail.Gone = append(e.detail.Gone, p.pod.ID)
			delete(b.history.pods, p.pod.ID)
			delete(e.pods, id)
		}
	}
}

// all returns everything that a scope sees, with the detail of the named service if it exists.
func (b *board) all(watch string, s Scope) All {
	pressure := []status.Pressure{}
	if s.Everything() {
		pressure = append(pressure, b.pressure...)
	}
	a := All{
		Tick:   Tick{Time: b.at.UnixMilli(), Services: []Row{}, Pressure: &pressure},
		Phases: lifecycle.PhaseNames(),
	}
	for _, e := range b.services {
		if yes, _ := s.Sees(e.row.Namespace); yes {
			a.Services = append(a.Services, e.row)
			a.Loads = append(a.Loads, e.load)
		}
	}
	for _, w := range b.kept {
		if sees(s, w.Service) {
			a.Wakes = append(a.Wakes, wakeOf(w))
		}
	}
	for _, e := range b.events.last() {
		if sees(s, e.Service) {
			a.Events = append(a.Events, e)
		}
	}
	e := b.services[watch]
	if e == nil || !sees(s, watch) {
		return a
	}
	w := &Watched{ID: e.row.ID, Detail: Detail{Count: e.detail.Count}}
	ids := make([]int, 0, len(e.pods))
	for _, p := range e.pods {
		w.Pods, w.Loads = append(w.Pods, p.pod), append(w.Loads, p.load)
		ids = append(ids, p.pod.ID)
	}
	w.History = b.history.of(e.row.ID, ids)
	a.Watched = w
	return a
}

// share names the part of the board that a scope sees; scopes that see the same have the same share. unknown is set
// if the board has a namespace on which the scope has not decided yet.
func (b *board) share(s Scope) (name string, unknown bool) {
	if s.Everything() {
		return "*", false
	}
	var visible []string
	for n := range b.namespaces {
		yes, known := s.Sees(n)
		if yes {
			visible = append(visible, n)
		}
		unknown = unknown || !known
	}
	slices.Sort(visible)
	return strings.Join(visible, " "), unknown
}

// of returns the part of a tick that a scope sees.
func (t Tick) of(s Scope) Tick {
	if s.Everything() {
		return t
	}
	yes := func(namespace string) bool {
		yes, _ := s.Sees(namespace)
		return yes
	}
	out := Tick{Time: t.Time}
	for _, r := range t.Services {
		if yes(r.Namespace) {
			out.Services = append(out.Services, r)
		}
	}
	for i, id := range t.Gone {
		if yes(t.goneFrom[i]) {
			out.Gone = append(out.Gone, id)
		}
	}
	for i, l := range t.Loads {
		if yes(t.loadsFrom[i]) {
			out.Loads = append(out.Loads, l)
		}
	}
	for _, w := range t.Wakes {
		if sees(s, w.Service) {
			out.Wakes = append(out.Wakes, w)
		}
	}
	for _, e := range t.Events {
		if sees(s, e.Service) {
			out.Events = append(out.Events, e)
		}
	}
	return out
}
