// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"sort"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/wire"
)

// publisher sends daemons the pods of services.
type publisher struct {
	loop    *loop
	table   *table
	daemons *daemons
	feed    *feed
	deliver deliver
}

func newPublisher(l *loop, t *table, d *daemons, deliver deliver) *publisher {
	u := &publisher{loop: l, table: t, daemons: d, feed: newFeed(l, t, d), deliver: deliver}
	u.feed.drains.known = u.drainKnown
	return u
}

// publish makes the pods of a service known to all daemons.
func (u *publisher) publish(s *service, a lifecycle.PublishBackends) {
	m := &wire.Backends{Service: s.addr, Generation: a.Generation, Sharing: uint8(a.Sharing)}
	for _, p := range s.pods {
		p.published = 0
	}
	newDrain := false
	probes := map[string]bool{}
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
			PodID: p.id, State: wire.PodState(b.State), Addr: netip.AddrPortFrom(p.rt.Addr, p.ports[0]),
			Node: p.node, NodeAddr: p.rt.NodeAddr, Netns: p.rt.Netns, Open: uint16(b.Open),
		})
		if len(s.ports) > 1 {
			m.Targets = append(m.Targets, s.targets(p)[1:])
		}
		if probes[p.probe] || len(probes) < wire.MaxProbes && p.probe != "" {
			probes[p.probe] = true
			last := &m.Pods[len(m.Pods)-1]
			last.Probe, last.Runtime = p.probe, p.rt.ID
		}
	}
	s.round = nil
	f := u.feed.add(s, m)
	if newDrain && !s.homeless {
		u.drain(s, m)
	}
	if !s.homeless {
		u.feed.spread(f)
	}
	if slices.ContainsFunc(m.Pods, func(b wire.Backend) bool { return b.State == wire.PodServing }) {
		s.askers = nil
	}
}

// repeat sends the pods of a service to one daemon, which refers to one that is gone.
func (u *publisher) repeat(s *service, to wire.Peer) {
	switch p := s.publication; {
	case s.homeless:
	case p == nil: // the first publication, which all others get as well
		u.deliver(s, lifecycle.Rejoined{})
	default:
		if e, ok := u.feed.encode(p, to.Node); ok {
			u.daemons.sendBatch(to.ID, []wire.Encoded{e}, nil)
		}
	}
}

// welcome brings a daemon that has joined up to date. The table of services is on its way already.
func (u *publisher) welcome(p wire.Peer) {
	u.feed.join(p)
	for _, s := range u.feed.stopping() {
		u.deliver(s, lifecycle.Rejoined{}) // a drain also has to wait for this daemon's answer
	}
}

// drain begins a round in which every daemon learns which pods are drained. Then the pods' home nodes are asked how
// busy they are. A daemon that leaves meanwhile is not waited for.
func (u *publisher) drain(s *service, m *wire.Backends) {
	if len(u.daemons.peers) <= 1 { // the only daemon answers by itself
		allowQuiet(s, m.Generation)
		return
	}
	r := u.feed.beginDrain(s)
	if s.round = r; r == nil { // all of them are just leaving; not from within a step
		r = &drainRound{service: s}
		s.round = r
		u.loop.after(0, func() { u.drainKnown(r) })
	}
}

// drainKnown asks the home nodes of drained pods how busy they are, now that no daemon gives the pods new flows.
func (u *publisher) drainKnown(r *drainRound) {
	s := r.service
	if s.round != r || u.table.services[s.key] != s {
		return
	}
	s.round = nil
	allowQuiet(s, s.machine.Generation()+1)
	u.deliver(s, lifecycle.Rejoined{}) // publishes again; the daemons answer the new publication
}

// allowQuiet accepts Quiet answers to a generation or a later one.
func allowQuiet(s *service, generation uint64) {
	for _, p := range s.pods {
		if p.published == lifecycle.PodDraining && p.quietFrom == 0 {
			p.quietFrom = generation
		}
	}
}

// drains are the drains on their way to all daemons, in the order of seq. They belong to the loop.
type drains struct {
	rounds []*drainRound
	known  func(*drainRound) // called when all daemons have a drain
}

// begin begins a drain with the newest publication of a service. awaited is the number of daemons that get it.
func (d *drains) begin(s *service, awaited int) *drainRound {
	r := &drainRound{service: s, seq: s.publication.seq, awaited: awaited}
	// Drains that are over or superseded stay in the list only behind one that is not.
	for len(d.rounds) > 0 && (d.rounds[0].awaited == 0 || d.rounds[0].service.round != d.rounds[0]) {
		d.rounds[0] = nil
		d.rounds = d.rounds[1:]
	}
	d.rounds = append(d.rounds, r)
	return r
}

// settle no longer waits for one daemon in drains whose seq is above from and at most upTo.
func (d *drains) settle(from, upTo uint64) {
	i := sort.Search(len(d.rounds), func(i int) bool { return d.rounds[i].seq > from })
	var over []*drainRound
	for ; i < len(d.rounds) && d.rounds[i].seq <= upTo; i++ {
		if r := d.rounds[i]; r.awaited > 0 {
			if r.awaited--; r.awaited == 0 {
				over = append(over, r)
			}
		}
	}
	for _, r := range over {
		d.known(r)
	}
}
