// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

const (
	// maxPressures is the most alerts of one session that are kept, more than a daemon sends.
	maxPressures = 256
	// namedPressures is how many of them a Message has.
	namedPressures = 3
)

// pressureKey identifies an alert of a daemon.
type pressureKey struct {
	session uint64
	kind    wire.AlertKind
	service netip.AddrPort // zero if it concerns the whole node
}

// pressureSet holds the alerts of one service, or of all that are in use, and their summary.
type pressureSet struct {
	all     map[pressureKey]status.Pressure
	summary status.Pressure
}

// summarize makes the summary, which names the first few.
func (s *pressureSet) summarize() {
	keys := slices.SortedFunc(maps.Keys(s.all), func(a, b pressureKey) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), strings.Compare(s.all[a].Message, s.all[b].Message))
	})
	s.summary = status.Pressure{}
	var texts []string
	for i, k := range keys {
		if i == namedPressures {
			texts = append(texts, fmt.Sprintf("%d more", len(keys)-i))
			break
		}
		texts = append(texts, s.all[k].Message)
	}
	if len(keys) > 0 {
		s.summary = status.Pressure{Reason: s.all[keys[0]].Reason, Message: strings.Join(texts, "; ")}
	}
}

// pressures are the scarce resources in the gates of all nodes. They belong to the loop.
type pressures struct {
	own   map[netip.AddrPort]*pressureSet // by the only service that it concerns
	nodes pressureSet
	count map[uint64]int // of a session
}

func newPressures() *pressures {
	return &pressures{
		own: map[netip.AddrPort]*pressureSet{}, nodes: pressureSet{all: map[pressureKey]status.Pressure{}},
		count: map[uint64]int{},
	}
}

// of summarizes the pressure on the service with an address; zero if the service has lost that address. Pressure on a
// node is reported only for services in use, so that a busy node does not cause thousands of sleeping ones to be
// written.
func (p *pressures) of(addr netip.AddrPort, inUse bool) status.Pressure {
	if own := p.own[addr]; own != nil {
		return own.summary
	}
	if !inUse {
		return status.Pressure{}
	}
	return p.nodes.summary
}

// get returns a pressure that is recorded.
func (p *pressures) get(k pressureKey) (v status.Pressure, known bool) {
	set := &p.nodes
	if k.service.IsValid() {
		if set = p.own[k.service]; set == nil {
			return v, false
		}
	}
	v, known = set.all[k]
	return v, known
}

// set records a pressure.
func (p *pressures) set(k pressureKey, v status.Pressure) {
	set := &p.nodes
	if k.service.IsValid() {
		if set = p.own[k.service]; set == nil {
			set = &pressureSet{all: map[pressureKey]status.Pressure{}}
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
