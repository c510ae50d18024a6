// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"

	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/wire"
)

// publisher sends the pods of services to daemons.
type publisher struct {
	loop    *loop
	table   *table
	daemons *daemons
	deliver deliver
}

// publish sends the pods of a service to all daemons.
func (u *publisher) publish(s *service, a lifecycle.PublishBackends) {
	m := &wire.Backends{Service: s.addr, Generation: a.Generation, Sharing: uint8(a.Sharing)}
	for _, p := range s.pods {
		p.published = 0
	}
	newDrain := false
	for _, b := range a.Pods {
		p := s.pod(b.Ref)
		p.published = b.State
		p.served = p.served || b.State == lifecycle.PodServing
		if b.State != lifecycle.PodDraining {
			p.quietFrom = 0
		} else if p.quietFrom == 0 {
			newDrain = true
		}
		m.Pods = append(m.Pods, wire.Backend{
			PodID: p.id, State: wire.PodState(b.State), Addr: netip.AddrPortFrom(p.rt.Addr, p.port),
			Node: p.node, NodeAddr: p.rt.NodeAddr, Netns: p.rt.Netns,
		})
	}
	s.sent, s.round = m, nil
	switch {
	case s.homeless:
	case newDrain:
		u.drain(s, m)
	default:
		for id, p := range u.daemons.peers {
			u.daemons.send(id, forNode(m, p.Node))
		}
	}
}

// welcome sends the pods of all services to a daemon that has joined. The table of services is on its way already.
func (u *publisher) welcome(p wire.Peer) {
	for _, s := range u.table.services {
		switch {
		case s.homeless:
		case s.machine.State() == lifecycle.Stopping && len(s.pods) > 0:
			u.deliver(s, lifecycle.Rejoined{}) // a drain has to wait for this daemon's answer, too
		case s.sent != nil && (len(s.sent.Pods) > 0 || len(s.pods) > 0):
			u.daemons.send(p.ID, forNode(s.sent, p.Node))
		}
	}
}

// forNode is a message as a node gets it: only a pod's home node needs its network namespace.
func forNode(m *wire.Backends, node string) *wire.Backends {
	out := m
	for i := range m.Pods {
		if m.Pods[i].Node == node || m.Pods[i].Netns == "" {
			continue
		}
		if out == m {
			other := *m
			out, other.Pods = &other, slices.Clone(m.Pods)
		}
		out.Pods[i].Netns = ""
	}
	return out
}

// drain publishes newly drained pods, and asks their home nodes how busy they are once every daemon has the message. A
// daemon that leaves meanwhile is not waited for.
func (u *publisher) drain(s *service, m *wire.Backends) {
	r := &drainRound{}
	s.round = r
	acknowledged := func() {
		if r.awaited--; r.awaited == 0 {
			u.drainKnown(s, r)
		}
	}
	for id, p := range u.daemons.peers {
		if u.daemons.sendThen(id, forNode(m, p.Node), acknowledged) {
			r.awaited++
		}
	}
	switch {
	case len(u.daemons.peers) <= 1: // the only daemon answers by itself
		s.round = nil
		allowQuiet(s, m.Generation)
	case r.awaited == 0: // all of them are just leaving; not from within a step
		u.loop.after(0, func() { u.drainKnown(s, r) })
	}
}

// drainKnown asks the home nodes of drained pods how busy they are, now that no daemon gives the pods new flows.
func (u *publisher) drainKnown(s *service, r *drainRound) {
	if s.round != r || u.table.services[s.key] != s {
		return
	}
	s.round = nil
	allowQuiet(s, s.machine.Generation()+1)
	u.deliver(s, lifecycle.Rejoined{}) // publishes again, and daemons answer that
}

// allowQuiet makes Quiet answers to a generation, or to a later one, count.
func allowQuiet(s *service, generation uint64) {
	for _, p := range s.pods {
		if p.published == lifecycle.PodDraining && p.quietFrom == 0 {
			p.quietFrom = generation
		}
	}
}
