// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/wire"
)

// publish tells all daemons the pods of a service.
func (c *Controller) publish(s *service, a lifecycle.PublishBackends) {
	m := &wire.Backends{Service: s.addr, Generation: a.Generation, Sharing: uint8(a.Sharing)}
	for _, p := range s.pods {
		p.state = 0
	}
	draining := false
	for _, b := range a.Pods {
		p := s.pod(b.Ref)
		p.served = p.served || b.State == lifecycle.BackendServing
		if p.state = b.State; b.State != lifecycle.BackendDraining {
			p.quietFrom = 0
		} else if p.quietFrom == 0 {
			draining = true
		}
		m.Pods = append(m.Pods, wire.Backend{
			PodID: p.id, State: wire.PodState(b.State), Addr: netip.AddrPortFrom(p.rt.Addr, p.port),
			Node: p.node, NodeAddr: p.rt.NodeAddr, Netns: p.rt.Netns,
		})
	}
	s.sent, s.round = m, nil
	switch {
	case s.homeless:
	case draining:
		c.drainRound(s, m)
	default:
		for id, p := range c.peers {
			c.send(id, forNode(m, p.Node))
		}
	}
}

// forNode is a message as a node gets it: only a pod's home needs to know its network namespace.
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

// round is a drain on its way to all daemons. Any of them may give the pod a new flow until it knows; so what the pod's
// home node says of open flows and packets counts only from then on.
type round struct{ awaited int }

// drainRound sends pods of which some are newly drained, and has their home nodes asked once every daemon knows. A
// daemon that leaves meanwhile is not waited for.
func (c *Controller) drainRound(s *service, m *wire.Backends) {
	r := &round{}
	s.round = r
	for id, p := range c.peers {
		err := c.server.SendThen(id, forNode(m, p.Node), func(error) {
			c.post(func() {
				if r.awaited--; r.awaited == 0 {
					c.everyoneKnows(s, r)
				}
			})
		})
		if err == nil {
			r.awaited++
		} else {
			c.notSent(id, m, err)
		}
	}
	switch {
	case len(c.peers) <= 1: // the only daemon there is answers by itself
		s.round = nil
		c.quietFrom(s, m.Generation)
	case r.awaited == 0: // all of them are just leaving; not from within a step
		c.after(0, func() { c.everyoneKnows(s, r) })
	}
}

// everyoneKnows asks the home nodes of drained pods how busy they are, now that no daemon gives them new flows.
func (c *Controller) everyoneKnows(s *service, r *round) {
	if s.round != r || c.services[s.key] != s {
		return
	}
	s.round = nil
	c.quietFrom(s, s.machine.Generation()+1)
	c.step(s, lifecycle.Rejoined{}) // daemons answer it as they did before
}

// quietFrom lets Quiet answers to a generation count, or to a later one.
func (c *Controller) quietFrom(s *service, generation uint64) {
	for _, p := range s.pods {
		if p.state == lifecycle.BackendDraining && p.quietFrom == 0 {
			p.quietFrom = generation
		}
	}
}

// broadcast queues a message for all daemons.
func (c *Controller) broadcast(m wire.Message) {
	for id := range c.peers {
		c.send(id, m)
	}
}

func (c *Controller) send(peer uint64, m wire.Message) {
	if err := c.server.Send(peer, m); err != nil {
		c.notSent(peer, m, err)
	}
}

// notSent tells of a message that was not sent. A daemon that is gone is told anew when it joins.
func (c *Controller) notSent(peer uint64, m wire.Message, err error) {
	if !errors.Is(err, wire.ErrPeerGone) {
		c.report("", SeverityError, fmt.Sprintf("node %s: %v is not sent: %v", c.peers[peer].Node, m.Type(), err))
	}
}
