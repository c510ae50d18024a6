// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/wire"
)

// Reasons of a Pressure.
const (
	PressureWakes = "WakesLimited"    // clients exceed a budget of wakes
	PressureTable = "TableAlmostFull" // a table of a gate, or a share of one, is almost full
)

// Pressure tells of what is scarce in the gates of nodes, now or in the last minute. The zero value is that nothing is.
type Pressure struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

const (
	// maxPressures is the most alerts of one session that are kept, more than a daemon sends.
	maxPressures = 256
	// namedPressures is how many of them a Message has.
	namedPressures = 3
)

// pressureKey tells what daemons report apart.
type pressureKey struct {
	session uint64
	kind    wire.AlertKind
	service netip.AddrPort // zero if it concerns the whole node
}

// pressureSet holds what concerns one service, or all that are in use, and a summary of it.
type pressureSet struct {
	all     map[pressureKey]Pressure
	summary Pressure
}

// summarize makes the summary, which names the first few.
func (s *pressureSet) summarize() {
	keys := slices.SortedFunc(maps.Keys(s.all), func(a, b pressureKey) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), strings.Compare(s.all[a].Message, s.all[b].Message))
	})
	s.summary = Pressure{}
	var texts []string
	for i, k := range keys {
		if i == namedPressures {
			texts = append(texts, fmt.Sprintf("%d more", len(keys)-i))
			break
		}
		texts = append(texts, s.all[k].Message)
	}
	if len(keys) > 0 {
		s.summary = Pressure{s.all[keys[0]].Reason, strings.Join(texts, "; ")}
	}
}

// pressures are what is scarce in the gates of all nodes. They belong to the loop.
type pressures struct {
	own   map[netip.AddrPort]*pressureSet // by the only service that it concerns
	nodes pressureSet
	count map[uint64]int // of a session
}

func newPressures() *pressures {
	return &pressures{
		own: map[netip.AddrPort]*pressureSet{}, nodes: pressureSet{all: map[pressureKey]Pressure{}},
		count: map[uint64]int{},
	}
}

// of summarizes what concerns a service. What concerns a node is told of services in use only: ten thousand that sleep
// are not written for it.
func (p *pressures) of(s *service) Pressure {
	if own := p.own[s.addr]; own != nil && !s.homeless {
		return own.summary
	}
	if s.machine.State() == lifecycle.Cold {
		return Pressure{}
	}
	return p.nodes.summary
}

// set records a pressure.
func (p *pressures) set(k pressureKey, v Pressure) {
	set := &p.nodes
	if k.service.IsValid() {
		if set = p.own[k.service]; set == nil {
			set = &pressureSet{all: map[pressureKey]Pressure{}}
			p.own[k.service] = set
		}
	}
	if _, known := set.all[k]; !known {
		p.count[k.session]++
	}
	set.all[k] = v
	set.summarize()
}

// remove forgets a pressure.
func (p *pressures) remove(k pressureKey) {
	set := &p.nodes
	if k.service.IsValid() {
		set = p.own[k.service]
	}
	if set == nil {
		return
	}
	if _, known := set.all[k]; !known {
		return
	}
	delete(set.all, k)
	set.summarize()
	if len(set.all) == 0 && k.service.IsValid() {
		delete(p.own, k.service)
	}
	if p.count[k.session]--; p.count[k.session] == 0 {
		delete(p.count, k.session)
	}
}

// ofSession returns the keys of what a daemon has reported.
func (p *pressures) ofSession(id uint64) (keys []pressureKey) {
	if p.count[id] == 0 {
		return nil
	}
	add := func(s *pressureSet) {
		for k := range s.all {
			if k.session == id {
				keys = append(keys, k)
			}
		}
	}
	add(&p.nodes)
	for _, s := range p.own {
		add(s)
	}
	return keys
}

// noteAlert takes a daemon's report of what is scarce in its gate.
func (e *engine) noteAlert(from wire.Peer, m *wire.Alert) {
	k := pressureKey{session: from.ID, kind: m.Kind, service: m.Service}
	s := e.table.byAddr[m.Service]
	v := Pressure{PressureTable, alertText(from.Node, m, s)}
	if m.Kind.OfWakes() {
		v.Reason = PressureWakes
	}
	switch {
	case m.Over:
		e.events.report("", SeverityInfo, fmt.Sprintf("node %s: no longer scarce: %v", from.Node, m.Kind))
		e.pressures.remove(k)
	case e.pressures.count[from.ID] >= maxPressures:
		return
	default:
		e.pressures.set(k, v)
		if s != nil {
			e.events.pressure(s.key, from.Node, v)
		}
		if !m.Kind.OfWakes() || m.Kind == wire.AlertNodeWakes {
			e.events.pressure("", from.Node, v)
		}
	}
	e.checkPressed(k)
}

// dropAlerts forgets what a daemon that has disconnected has reported: the next one measures anew.
func (e *engine) dropAlerts(from wire.Peer) {
	for _, k := range e.pressures.ofSession(from.ID) {
		e.pressures.remove(k)
		e.checkPressed(k)
	}
}

// checkPressed tells of the services that a change of pressure concerns.
func (e *engine) checkPressed(k pressureKey) {
	if k.service.IsValid() {
		if s := e.table.byAddr[k.service]; s != nil {
			e.changed.check(s)
		}
		return
	}
	for _, s := range e.table.services {
		if s.machine.State() != lifecycle.Cold || s.reported.pressure != (Pressure{}) {
			e.changed.check(s)
		}
	}
}

// alertText says what is scarce. s is the service concerned; nil if there is none.
func alertText(node string, m *wire.Alert, s *service) string {
	consequence := "they have to prove where they are"
	if s != nil && s.spec.Spec.WakeProof == v1alpha1.WakeProofNever {
		consequence = "their connection requests are dropped"
	}
	text := ""
	switch m.Kind {
	case wire.AlertNodeWakes:
		text = fmt.Sprintf("clients exceed the budget of wakes of the node, one of them in %v: %s", m.Source, consequence)
	case wire.AlertServiceWakes:
		text = fmt.Sprintf("clients exceed the budget of wakes of the service, one of them in %v: %s", m.Source, consequence)
	case wire.AlertSourceWakes:
		text = fmt.Sprintf("clients in %v exceed their budget of wakes: %s", m.Source, consequence)
	case wire.AlertProvenWakes:
		text = fmt.Sprintf("clients in %v exceed the budget of wakes of those that have proven where they are: "+
			"their connection requests to sleeping services are dropped", m.Source)
	case wire.AlertSourceFlows:
		text = fmt.Sprintf("client %v has %d of the %d connections that one address may have (--max-flows-per-source)",
			m.Source.Addr(), m.Used, m.Size)
	case wire.AlertServiceFlows:
		text = fmt.Sprintf("service address %v has %d of the %d connections that one may have (--max-flows-per-service)",
			m.Service, m.Used, m.Size)
	default:
		text = fmt.Sprintf("the gate's table %v is almost full: %d of %d entries (--%[1]v)", m.Kind, m.Used, m.Size)
	}
	return "node " + node + ": " + text
}
