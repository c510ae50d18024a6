// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"time"

	"wangell.loutres.me/internal/wire"
)

const (
	// relayPause is the shortest time for which counts are collected before they are passed on.
	relayPause = 50 * time.Millisecond
	// relayCost is the pause for each message: with many nodes and pods, counts are older, but at most 20,000
	// messages are sent per second.
	relayCost = 50 * time.Microsecond
	// repeatLoads is the time after which a new daemon gets the counts again: the first message may be lost, or arrive
	// before the pods.
	repeatLoads = time.Second
)

// relay passes each pod's latest count of open flows from its home node to the other nodes.
type relay struct {
	loop    *loop
	table   *table
	daemons *daemons
	due     map[*pod]bool
	armed   bool      // passOn will run
	next    time.Time // not before
}

// add records the count that a pod's home node reports.
func (r *relay) add(from wire.Peer, l wire.PodLoad) {
	p := r.table.byWire[l.PodID]
	if p == nil || p.node != from.Node || p.service.homeless || p.service.addr != l.Service {
		return
	}
	p.load = &l.OpenFlows
	r.due[p] = true
	if !r.armed {
		r.armed = true
		r.loop.after(time.Until(r.next), r.passOn)
	}
}

// passOn sends new counts to every node but the pod's own.
func (r *relay) passOn() {
	n := 0
	for id, peer := range r.daemons.peers {
		var pods []*pod
		for p := range r.due {
			if r.table.byWire[p.id] == p && p.node != peer.Node {
				pods = append(pods, p)
			}
		}
		n += r.send(id, pods)
	}
	clear(r.due)
	r.armed, r.next = false, time.Now().Add(max(relayPause, time.Duration(n)*relayCost))
}

// welcome sends all counts to a new daemon, whose gate may have old ones.
func (r *relay) welcome(peer wire.Peer) {
	sendAll := func() {
		var pods []*pod
		for _, p := range r.table.byWire {
			if p.load != nil && p.node != peer.Node {
				pods = append(pods, p)
			}
		}
		r.send(peer.ID, pods)
	}
	sendAll()
	r.loop.after(repeatLoads, func() {
		if _, there := r.daemons.peers[peer.ID]; there {
			sendAll()
		}
	})
}

// send sends counts to a daemon, and returns the number of messages.
func (r *relay) send(peer uint64, pods []*pod) (n int) {
	for chunk := range slices.Chunk(pods, wire.MaxPodLoads) {
		m := &wire.Loads{}
		for _, p := range chunk {
			if !p.service.homeless && p.load != nil {
				m.Pods = append(m.Pods, wire.PodLoad{Service: p.service.addr, PodID: p.id, OpenFlows: *p.load})
			}
		}
		r.daemons.send(peer, m)
		n++
	}
	return n
}
