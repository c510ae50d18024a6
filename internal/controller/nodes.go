// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

const (
	// nodesPause is how long a new controller waits for daemons before it sends them the list of nodes. Until then
	// they use the list of the previous controller.
	nodesPause = 500 * time.Millisecond
	// regatherPause is how long the controller waits for other daemons when the first one is back after all were
	// lost. Then probably the controller was not reachable, rather than all nodes dead; the first one back must not
	// get all VIPs. It is longer than a daemon's pause between two HELLOs (docs/protocol).
	regatherPause = 1500 * time.Millisecond
	// stayFor is how long a node is kept whose daemon has announced that it restarts.
	stayFor = 30 * time.Second
	// awayAfter is how long after the loss of its daemon a node's pods get no new flows, and others are started.
	awayAfter = 5 * time.Second
)

// listShare is the pause after a list of nodes, as a multiple of the time that sending it took, and listPause the least
// such pause if the list takes several messages: while many daemons join, there is not a list for each of them.
const (
	listShare = 8
	listPause = 100 * time.Millisecond
)

// node is a node that has, or had, a daemon or a pod.
type node struct {
	name       string
	session    uint64        // of its daemon; 0 while there is none
	info       *wire.Node    // as its daemon, or the one before, described it, once confirmed; nil if none did
	described  uint64        // session in which it did
	claim      claim         // what its daemon says, before the cluster has confirmed it
	tagReady   wire.TagReady // as its daemon, or the daemon before, reported it
	readyIn    uint64        // session in which it did
	tags       bool          // it opens tagged packets, and tags those to nodes that do
	lost       monotime.Time // when its daemon was lost
	restarting bool          // as its daemon has announced
	away       bool          // its pods do not count
}

// claim is the description of a node by its daemon.
type claim struct {
	session uint64
	info    *wire.Node
	waiting []func() // messages of the session that depend on it, in their order
}

const (
	// firstClaimRetry and lastClaimRetry bound the pause before a cluster is asked again for the addresses of a node.
	firstClaimRetry = time.Second
	lastClaimRetry  = 30 * time.Second
	// maxClaimWaiting is the most messages that wait for the confirmation of a description: more than there are pods on
	// a node.
	maxClaimWaiting = 1024
)

// nodes are all nodes, and the list of nodes that daemons have.
type nodes struct {
	loop    *loop
	workers *workers
	events  *hub
	table   *table
	daemons *daemons
	cluster runtime.Cluster // nil on one machine
	deliver deliver
	tagger  *tagger
	// confirmed are the addresses of nodes according to the cluster, by the node's name, also of nodes that are away: a
	// daemon must be able to come back while the cluster does not answer.
	confirmed map[string][]netip.Addr

	byName     map[string]*node
	open       bool            // the pause is over
	gathering  bool            // there are no daemons (any more): the pause begins when the first one is there
	dirty      bool            // the list may have changed
	newcomers  map[uint64]bool // sessions that have not got the list yet
	lastSent   []wire.NodeInfo
	generation uint64
	next       time.Time // no list is sent before
	waiting    bool      // for that time
}

func (n *nodes) node(name string) *node {
	at := n.byName[name]
	if at == nil {
		at = &node{name: name}
		n.byName[name] = at
	}
	return at
}

// describe handles a daemon's description of its node. It counts once the cluster has the node with that address:
// whoever has the key of a node could name the address of another one.
func (n *nodes) describe(from wire.Peer, info *wire.Node) {
	at := n.node(from.Node)
	at.claim = claim{session: from.ID, info: info}
	switch {
	case n.cluster == nil:
		n.accept(at)
	case !info.Addr.Is4():
		n.refuse(at, fmt.Sprintf("its daemon says that its address is %s: nodes need an IPv4 address", info.Addr))
	case slices.Contains(n.confirmed[at.name], info.Addr):
		n.accept(at)
	default:
		n.confirm(at, firstClaimRetry)
	}
}

// confirm asks the cluster for the addresses of a node, and accepts the node if what its daemon says is one of them. It
// asks again after a pause, which doubles, while the daemon is connected.
func (n *nodes) confirm(at *node, pause time.Duration) {
	session := at.claim.session
	n.workers.group.Go(func() {
		addrs, err := n.cluster.NodeAddrs(n.workers.ctx, at.name)
		n.loop.post(func() {
			if n.loop.halted || at.claim.session != session || at.session != session || at.described == session {
				return
			}
			addr := at.claim.info.Addr
			switch {
			case err == nil && (len(addrs) == 0 || slices.Contains(addrs, addr)):
				if n.confirmed == nil {
					n.confirmed = map[string][]netip.Addr{}
				}
				n.confirmed[at.name] = append(addrs, addr)
				n.accept(at)
				return
			case errors.Is(err, runtime.ErrNotFound):
				n.refuse(at, "the cluster has no such node")
			case err != nil:
				n.refuse(at, "its addresses cannot be read: "+err.Error())
			default:
				n.refuse(at, fmt.Sprintf("its daemon says that its address is %s, and the status of the Node has %v",
					addr, addrs))
			}
			n.loop.after(pause, func() {
				if at.claim.session == session && at.session == session {
					n.confirm(at, backoff.Next(pause, firstClaimRetry, lastClaimRetry))
				}
			})
		})
	})
}

// refuse reports why a node is not a member.
func (n *nodes) refuse(at *node, why string) {
	text := fmt.Sprintf("node %s gets no packets of other nodes: %s", at.name, why)
	n.events.report("", v1alpha1.EventProblem, status.SeverityWarning, text)
}

// accept makes a node one of the list, as its daemon has described it. The daemon gets the list of nodes, and what it
// needs for tags if it has said before that it supports them.
func (n *nodes) accept(at *node) {
	id := at.claim.session
	at.info, at.described = at.claim.info, id
	n.newcomers[id] = true
	if at.readyIn == id {
		n.tagger.able[id] = true
		if n.tagger.now != nil {
			n.daemons.send(id, n.tagger.now)
		}
	}
	n.settleTags(at)
	waiting := at.claim.waiting
	at.claim.waiting = nil
	for _, f := range waiting {
		f()
	}
}

// whenAccepted runs f once the cluster has confirmed the description of a daemon's node, if the daemon has sent one.
func (n *nodes) whenAccepted(from wire.Peer, f func()) {
	at := n.node(from.Node)
	switch c := &at.claim; {
	case n.cluster == nil || c.session != from.ID || at.described == from.ID:
		f()
	case len(c.waiting) < maxClaimWaiting:
		c.waiting = append(c.waiting, f)
	}
}

// addr returns the address of a node; the zero value if it is not known, or not confirmed.
func (n *nodes) addr(name string) netip.Addr {
	if at := n.byName[name]; at != nil && at.info != nil {
		return at.info.Addr
	}
	return netip.Addr{}
}

// describeTags handles a daemon's report of the keys that its gate has. A node that is not accepted gets no keys.
func (n *nodes) describeTags(from wire.Peer, ready *wire.TagReady) {
	at := n.node(from.Node)
	at.tagReady, at.readyIn = *ready, from.ID
	if at.described == from.ID {
		n.tagger.able[from.ID] = true
	}
	n.settleTags(at)
}

// settleTags decides whether a node tags. While its daemon is being replaced, that stays as it was.
func (n *nodes) settleTags(at *node) {
	if at.described == at.session {
		at.tags, n.dirty = at.readyIn == at.session && n.tagger.ready(at.tagReady.First), true
	}
}

// joined records the daemon of a node, whose pods count again.
func (n *nodes) joined(p wire.Peer) {
	at := n.node(p.Node)
	at.session, at.restarting, at.lost = p.ID, false, 0
	n.dirty = true
	if n.gathering {
		n.gathering = false
		n.loop.after(regatherPause, n.endPause)
	}
	if at.away {
		at.away = false
		for _, p := range n.podsOn(at) {
			n.deliver(p.service, lifecycle.Back{Ref: p.ref})
		}
	}
}

// left records that the daemon of a node has left.
func (n *nodes) left(p wire.Peer) {
	delete(n.newcomers, p.ID)
	delete(n.tagger.able, p.ID)
	at := n.node(p.Node)
	if at.session != p.ID {
		return // it has another one already
	}
	at.session = 0
	at.restarting, n.dirty = p.Restarting, true
	if len(n.daemons.peers) == 0 {
		n.open, n.gathering = false, true
	}
	n.lose(at)
}

// watch watches over the home node of a pod. A node without a daemon counts as just lost.
func (n *nodes) watch(p *pod) {
	if n.cluster == nil || p.node == "" {
		return
	}
	if at := n.node(p.node); at.session == 0 && at.lost == 0 {
		n.lose(at)
	}
}

// heard reports whether a daemon on the pod's home node is connected.
func (n *nodes) heard(p *pod) bool {
	at := n.byName[p.node]
	return n.cluster == nil || at != nil && at.session != 0
}

// lose gives the daemon of a node time to come back.
func (n *nodes) lose(at *node) {
	at.lost = monotime.Now()
	lost, wait := at.lost, awayAfter
	if at.restarting {
		wait = stayFor
	}
	n.loop.after(wait, func() {
		if at.session != 0 || at.lost != lost {
			return
		}
		at.restarting, n.dirty = false, true
		pods := n.podsOn(at)
		at.away = at.away || len(pods) > 0
		for _, p := range pods {
			n.deliver(p.service, lifecycle.Away{Ref: p.ref})
		}
		if len(pods) == 0 && n.byName[at.name] == at {
			delete(n.byName, at.name)
		}
	})
}

// podsOn returns the pods of a node. Without a cluster it returns none: there is only one node, and nowhere else to go.
func (n *nodes) podsOn(at *node) []*pod {
	if n.cluster == nil {
		return nil
	}
	return n.table.podsOn(at.name)
}

// endPause ends the pause, unless all daemons were lost meanwhile.
func (n *nodes) endPause() {
	if !n.gathering {
		n.open, n.dirty = true, true
	}
}

// list is the nodes that have a daemon, by name. Of nodes with the same address all tag if one does: a node that takes
// the address of another one must not make its packets valid without tags.
func (n *nodes) list() []wire.NodeInfo {
	var list []wire.NodeInfo
	tags := map[netip.Addr]bool{}
	for _, at := range n.byName {
		if at.info != nil && (at.session != 0 || at.restarting) {
			list = append(list, wire.NodeInfo{Name: at.name, Addr: at.info.Addr, Tags: at.tags})
			tags[at.info.Addr] = tags[at.info.Addr] || at.tags
		}
	}
	for i := range list {
		list[i].Tags = tags[list[i].Addr]
	}
	slices.SortFunc(list, func(a, b wire.NodeInfo) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// flush sends the list of nodes to all daemons if it has changed, and to new ones in any case.
func (n *nodes) flush() {
	if !n.dirty || !n.open || n.waiting {
		return
	}
	begin := time.Now()
	if wait := n.next.Sub(begin); wait > 0 {
		n.waiting = true
		n.loop.after(wait, func() { n.waiting = false })
		return
	}
	n.dirty = false
	list := n.list()
	if len(list) == 0 && len(n.lastSent) == 0 {
		clear(n.newcomers)
		if len(n.daemons.peers) > 0 && n.daemons.first == nil {
			n.daemons.sendFirst(nil) // nodes without addresses: there is only one
		}
		return
	}
	everyone := !slices.Equal(list, n.lastSent)
	if everyone {
		n.generation, n.lastSent = n.generation+1, list
		if n.cluster != nil {
			names := make([]string, len(list))
			for i, at := range list {
				names[i] = at.Name
			}
			n.cluster.SetNodes(names)
		}
	}
	encodings := map[bool][]wire.Encoded{} // with and without tags
	batches := map[uint64][]wire.Encoded{}
	for id := range n.daemons.peers {
		if !everyone && !n.newcomers[id] {
			continue
		}
		able := n.tagger.able[id]
		if encodings[able] == nil {
			encodings[able] = n.daemons.encode(wire.NewNodes(n.generation, list, able))
		}
		batches[id] = encodings[able]
	}
	if n.daemons.first == nil {
		n.daemons.sendFirst(batches)
	} else {
		for id, batch := range batches {
			n.daemons.sendBatch(id, batch, nil)
		}
	}
	clear(n.newcomers)
	if len(encodings[true])+len(encodings[false]) > 1 {
		now := time.Now()
		n.next = now.Add(max(listPause, listShare*now.Sub(begin)))
	}
}
