// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"time"

	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/wire"
)

// joined tells a daemon of the pods. The table of services is on its way already.
func (c *Controller) joined(p wire.Peer) {
	c.peers[p.ID] = p
	c.nodeJoined(p)
	c.setAlone(false)
	for _, s := range c.services {
		switch {
		case s.homeless:
		case s.machine.State() == lifecycle.Stopping && len(s.pods) > 0:
			c.step(s, lifecycle.Rejoined{}) // a drain begins to wait for answers anew
		case s.sent != nil && (len(s.sent.Pods) > 0 || len(s.pods) > 0):
			c.send(p.ID, forNode(s.sent, p.Node))
		}
	}
	c.tellLoads(p)
	c.hub.emit(Event{Time: time.Now(), Kind: EventDaemon, Node: p.Node, Text: "connected"})
}

// alonePatience is how long no daemon at all may be connected before services are told to have none.
const alonePatience = 5 * time.Second

// watchAlone notes that there is no daemon, if that lasts.
func (c *Controller) watchAlone() {
	if len(c.peers) > 0 || c.halted {
		return
	}
	c.workers.Go(func() {
		select {
		case <-time.After(alonePatience):
			c.post(func() { c.setAlone(len(c.peers) == 0) })
		case <-c.ctx.Done():
		}
	})
}

func (c *Controller) setAlone(alone bool) {
	if c.alone == alone {
		return
	}
	c.alone = alone
	for k := range c.services {
		c.changed.add(k)
	}
}

func (c *Controller) left(p wire.Peer) {
	delete(c.peers, p.ID)
	c.nodeLeft(p)
	c.watchAlone()
	for _, s := range c.services {
		delete(s.idleWords, p.Node)
	}
	c.hub.emit(Event{Time: time.Now(), Kind: EventDaemon, Node: p.Node, Text: "disconnected"})
}

// receive gives a daemon's message to the machine of its service.
func (c *Controller) receive(from wire.Peer, m wire.Message) {
	switch m := m.(type) {
	case *wire.Node:
		n := c.node(from.Node)
		n.info, c.nodes.dirty = m, true
	case *wire.PodReport:
		c.seen(from, m)
	case *wire.Wake:
		s := c.byAddr[m.Service]
		switch {
		case !c.synced: // the daemon tells it again when it has the table of services
		case s == nil:
			c.send(from.ID, &wire.Refuse{Service: m.Service, Reason: "there is no such service"})
		default:
			s.last = max(s.last, m.SYNSeen)
			c.step(s, lifecycle.WakeAsked{Seq: m.Seq, SYNSeen: m.SYNSeen, Told: m.Noticed, Parked: m.Parked})
		}
	case *wire.Listening:
		if p := c.find(m.Service, m.PodID); p != nil {
			c.step(p.service, lifecycle.Listening{Ref: p.ref, At: m.At})
		}
	case *wire.Trace:
		if p := c.find(m.Service, m.PodID); p != nil {
			c.step(p.service, lifecycle.Trace{
				Ref: p.ref, Released: m.Released, FirstSYNACK: m.FirstSYNACK, FirstByte: m.FirstByte, ReleasedN: m.ReleasedN,
			})
		}
	case *wire.Quiet:
		p := c.find(m.Service, m.PodID)
		if p == nil || p.node != from.Node {
			return
		}
		if p.quietFrom != 0 && m.Generation >= p.quietFrom {
			c.step(p.service, lifecycle.Quiet{Ref: p.ref, Generation: m.Generation, LastPacket: m.LastPacket, OpenFlows: m.OpenFlows})
		}
	case *wire.Idle:
		if s := c.byAddr[m.Service]; s != nil {
			c.unused(s, from.Node, m.LastPacket)
		}
	case *wire.Usage:
		for _, u := range m.Pods {
			c.usage(from, u)
		}
	case *wire.Loads:
		for _, l := range m.Pods {
			c.load(from, l)
		}
	case *wire.Stats:
		for _, st := range m.Pods {
			c.stats(from, st)
		}
	}
}

// find returns the pod of which a daemon speaks. If there is none, the daemon is told the pods that
// there are, and so forgets it.
func (c *Controller) find(addr netip.AddrPort, id uint64) *pod {
	p, s := c.byWire[id], c.byAddr[addr]
	if p != nil && p.service == s {
		return p
	}
	if s != nil {
		c.step(s, lifecycle.Rejoined{})
	}
	return nil
}

// idleFor is how long a node's word counts that nobody uses a service: daemons repeat it every 10 s.
const idleFor = 30 * time.Second

// idleWord is a node's word that nobody uses its pods of a service.
type idleWord struct {
	at   monotime.Time // when it was said
	last monotime.Time // when somebody did, or when the last of its pods began to serve
}

// unused notes that a node has seen no packet for a service for its idle timeout. The service sleeps once that holds for
// every node that has a pod of it.
func (c *Controller) unused(s *service, node string, last monotime.Time) {
	if s.idleWords == nil {
		s.idleWords = map[string]idleWord{}
	}
	now := monotime.Now()
	s.idleWords[node] = idleWord{now, last}
	ev := lifecycle.IdleSeen{Of: map[lifecycle.Ref]monotime.Time{}}
	for _, p := range s.pods {
		if !s.machine.Serves(p.ref) {
			continue
		}
		w, told := s.idleWords[p.node]
		if !told || now.Sub(w.at) > idleFor || p.stats.LastPacket > w.last {
			return
		}
		ev.Of[p.ref], ev.LastPacket = w.last, max(ev.LastPacket, w.last)
	}
	clear(s.idleWords)
	c.step(s, ev)
}

// stats takes a pod's counters, which are totals since its start. They may come out of order. Only its home node has them:
// the others tell which pods their gates hold.
func (c *Controller) stats(from wire.Peer, st wire.PodStats) {
	p := c.find(st.Service, st.PodID)
	if p == nil || p.node != from.Node || st.LastPacket < p.stats.LastPacket {
		return
	}
	s, old := p.service, p.stats
	p.stats = st
	if st.NewFlows < old.NewFlows || st.BytesIn < old.BytesIn || st.BytesOut < old.BytesOut {
		old = wire.PodStats{} // the gate was made anew and counts from zero
	}
	s.traffic.NewFlows += st.NewFlows - old.NewFlows
	s.traffic.BytesIn += st.BytesIn - old.BytesIn
	s.traffic.BytesOut += st.BytesOut - old.BytesOut
	s.last = max(s.last, st.LastPacket)
	c.step(s, lifecycle.FlowsSeen{Ref: p.ref, Open: st.OpenFlows})
}
