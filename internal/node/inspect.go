// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"slices"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// inspect answers a question of the controller, unless one of its kind is still being answered: the flow table may be
// large, and nothing depends on the answer.
func (d *daemon) inspect(m *wire.Inspect) {
	busy, answer := d.inspections.gate, d.gateState
	if m.Most > 0 {
		busy, answer = d.inspections.connected, d.pairsConnected
	}
	select {
	case busy <- struct{}{}:
	default:
		return
	}
	d.tasks.Go(func() {
		defer func() { <-busy }()
		if a := answer(m); a != nil {
			d.send(a)
		}
	})
}

// gateState returns the state of the gate; nil if it cannot be read.
func (d *daemon) gateState(m *wire.Inspect) wire.Message {
	counters, err := d.gate.Counters()
	if err != nil {
		d.log.Error("cannot report the state of the gate to the controller", "error", err)
		return nil
	}
	out := &wire.GateState{Number: m.Number}
	for _, f := range d.fills() {
		out.Tables = append(out.Tables, wire.GateTable{Name: f.Table, Used: uint64(f.Used), Size: uint64(f.Size)})
	}
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		out.Counters = append(out.Counters, wire.GateCounter{Name: name, Value: counters[name]})
	}
	attached := d.gate.Attached()
	for _, name := range slices.Sorted(maps.Keys(attached)) {
		i := wire.GateInterface{Name: name, Mode: string(attached[name].Mode)}
		if len(out.Interfaces) < wire.MaxGateInterfaces {
			out.Interfaces = append(out.Interfaces, i)
		}
	}
	return out
}

// pairsConnected returns the clients connected to the pods of this node; nil if they cannot be read.
func (d *daemon) pairsConnected(m *wire.Inspect) wire.Message {
	most, others, err := d.gate.Connections(int(m.Most))
	if err != nil {
		d.log.Error("cannot report connections to the controller", "error", err)
		return nil
	}
	out := &wire.Connected{Number: m.Number, Others: uint64(others)}
	for _, c := range most {
		out.Pairs = append(out.Pairs, wire.ConnectedPair{Client: c.Client, Service: c.Service, Open: c.Open})
	}
	return out
}

// traceEvent records a pod's first SYN-ACK or first byte and reports it.
func (d *daemon) traceEvent(e gate.Event) {
	s := d.service(e.Service)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[e.Pod]
	if p == nil || !p.home {
		return // the home node observes the flows of all edge nodes
	}
	if e.Kind == gate.EventFirstSYNACK {
		p.trace.FirstSYNACK = e.At
	} else {
		p.trace.FirstByte = e.At
	}
	d.sendTrace(s, p)
}

// sendTrace reports the times of a pod's wake that are known so far. s.mu is held.
func (d *daemon) sendTrace(s *service, p *pod) {
	t := p.trace
	t.Service, t.PodID = s.addr, p.id
	d.send(&t)
}
