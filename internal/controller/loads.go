// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"time"

	"wangell.loutres.me/internal/wire"
)

const (
	// relayPause is how long at least counts are gathered before they are passed on again.
	relayPause = 50 * time.Millisecond
	// relayCost is the pause for each message: many nodes and pods make counts older, not messages more than 20,000 a second.
	relayCost = 50 * time.Microsecond
	// loadsAgain is after how long a daemon that is new is told the counts once more: a message may be lost, or come before
	// the pods.
	loadsAgain = time.Second
)

// relay passes open flows of pods on from their home nodes to the others, the newest of each pod.
type relay struct {
	due   map[*pod]bool
	armed bool      // it will be sent
	next  time.Time // not before
}

// load takes what a pod's home node tells.
func (c *Controller) load(from wire.Peer, l wire.PodLoad) {
	p := c.byWire[l.PodID]
	if p == nil || p.node != from.Node || p.service.homeless || p.service.addr != l.Service {
		return
	}
	p.load, p.loaded = l.OpenFlows, true
	r := &c.relay
	r.due[p] = true
	if !r.armed {
		r.armed = true
		c.after(time.Until(r.next), c.passOn)
	}
}

// passOn tells every node the counts that came of pods on others.
func (c *Controller) passOn() {
	r := &c.relay
	n := 0
	for id, peer := range c.peers {
		var pods []*pod
		for p := range r.due {
			if c.byWire[p.id] == p && p.node != peer.Node {
				pods = append(pods, p)
			}
		}
		n += c.sendLoads(id, pods)
	}
	clear(r.due)
	r.armed, r.next = false, time.Now().Add(max(relayPause, time.Duration(n)*relayCost))
}

// tellLoads tells a daemon that is new all counts: its gate may have those of before.
func (c *Controller) tellLoads(peer wire.Peer) {
	tell := func() {
		var pods []*pod
		for _, p := range c.byWire {
			if p.loaded && p.node != peer.Node {
				pods = append(pods, p)
			}
		}
		c.sendLoads(peer.ID, pods)
	}
	tell()
	c.after(loadsAgain, func() {
		if _, there := c.peers[peer.ID]; there {
			tell()
		}
	})
}

// sendLoads tells counts to a daemon, and returns in how many messages.
func (c *Controller) sendLoads(peer uint64, pods []*pod) (n int) {
	for chunk := range slices.Chunk(pods, wire.MaxPodLoads) {
		m := &wire.Loads{}
		for _, p := range chunk {
			if !p.service.homeless {
				m.Pods = append(m.Pods, wire.PodLoad{Service: p.service.addr, PodID: p.id, OpenFlows: p.load})
			}
		}
		c.send(peer, m)
		n++
	}
	return n
}
