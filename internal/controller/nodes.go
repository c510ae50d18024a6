// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/wire"
)

const (
	// nodesPause is how long a new controller waits for daemons before it tells them who is there: until then they go on
	// with what the one before has told.
	nodesPause = 500 * time.Millisecond
	// regatherPause is how long, after all daemons were lost, one waits for the others when the first is back: it is less
	// likely that all nodes died than that nobody heard the controller, and whoever is back first must not get all VIPs.
	// It is more than a daemon's pause between two HELLOs (docs/protocol.md).
	regatherPause = 1500 * time.Millisecond
	// stayFor is how long a node is kept whose daemon said that it will be back.
	stayFor = 30 * time.Second
	// awayAfter is how long after its daemon was lost a node's pods get no new flow, and others are started.
	awayAfter = 5 * time.Second
)

// node is a node of which a daemon was heard, or a pod.
type node struct {
	name    string
	session uint64     // of its daemon; 0 while there is none
	info    *wire.Node // what the daemon told of it, or the one before; nil if none did
	lost    monotime.Time
	staying bool // the daemon said that it will be back
	away    bool // its pods count no more
}

// nodes are all nodes, and what daemons know of them.
type nodes struct {
	byName     map[string]*node
	open       bool            // the pause is over
	gathering  bool            // all were lost: the pause begins when the first is back
	dirty      bool            // there may be something to tell
	untold     map[uint64]bool // sessions that were told nothing yet
	told       []wire.NodeInfo
	generation uint64
}

// after has the loop run f after a time, unless it has ended by then.
func (c *Controller) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() { c.post(f) })
}

func (c *Controller) node(name string) *node {
	n := c.nodes.byName[name]
	if n == nil {
		n = &node{name: name}
		c.nodes.byName[name] = n
	}
	return n
}

// nodeJoined notes the daemon of a node, whose pods count again.
func (c *Controller) nodeJoined(p wire.Peer) {
	n := c.node(p.Node)
	n.session, n.staying, n.lost = p.ID, false, 0
	c.nodes.untold[p.ID], c.nodes.dirty = true, true
	if c.nodes.gathering {
		c.nodes.gathering = false
		c.after(regatherPause, c.openNodes)
	}
	if n.away {
		n.away = false
		c.eachPodOn(n, func(p *pod) { c.step(p.service, lifecycle.Back{Ref: p.ref}) })
	}
}

// nodeLeft notes that the daemon of a node is gone.
func (c *Controller) nodeLeft(p wire.Peer) {
	delete(c.nodes.untold, p.ID)
	n := c.node(p.Node)
	if n.session != p.ID {
		return // it has another one already
	}
	n.session = 0
	n.staying, c.nodes.dirty = p.Restarting, true
	if len(c.peers) == 0 {
		c.nodes.open, c.nodes.gathering = false, true
	}
	c.lose(n)
}

// noteHome watches over the node of a pod. One without a daemon counts as just lost.
func (c *Controller) noteHome(p *pod) {
	if c.cluster == nil || p.node == "" {
		return
	}
	if n := c.node(p.node); n.session == 0 && n.lost == 0 {
		c.lose(n)
	}
}

// lose gives the daemon of a node time to come back.
func (c *Controller) lose(n *node) {
	n.lost = monotime.Now()
	lost, wait := n.lost, awayAfter
	if n.staying {
		wait = stayFor
	}
	c.after(wait, func() {
		if n.session != 0 || n.lost != lost {
			return
		}
		n.staying, c.nodes.dirty = false, true
		busy := false
		c.eachPodOn(n, func(p *pod) {
			busy, n.away = true, true
			c.step(p.service, lifecycle.Away{Ref: p.ref})
		})
		if !busy && c.nodes.byName[n.name] == n {
			delete(c.nodes.byName, n.name)
		}
	})
}

// eachPodOn calls f for the pods of a node. Without a cluster, whose pods come and go by themselves, there is only one
// node, and nowhere else to go.
func (c *Controller) eachPodOn(n *node, f func(*pod)) {
	if c.cluster == nil {
		return
	}
	var pods []*pod
	for _, s := range c.services {
		for _, p := range s.pods {
			if p.node == n.name {
				pods = append(pods, p)
			}
		}
	}
	for _, p := range pods {
		f(p)
	}
}

// openNodes ends the pause, unless all daemons were lost meanwhile.
func (c *Controller) openNodes() {
	if !c.nodes.gathering {
		c.nodes.open, c.nodes.dirty = true, true
	}
}

// flushNodes tells daemons which nodes there are, if that changed; those that are new are told in any case.
func (c *Controller) flushNodes() {
	ns := &c.nodes
	if !ns.dirty || !ns.open || !c.synced {
		return
	}
	ns.dirty = false
	var list []wire.NodeInfo
	for _, n := range ns.byName {
		if n.info != nil && (n.session != 0 || n.staying) {
			list = append(list, wire.NodeInfo{Name: n.name, Addr: n.info.Addr})
		}
	}
	slices.SortFunc(list, func(a, b wire.NodeInfo) int { return strings.Compare(a.Name, b.Name) })
	if len(list) == 0 && len(ns.told) == 0 {
		clear(ns.untold)
		return // nodes without addresses: there is only one
	}
	everyone := !slices.Equal(list, ns.told)
	if everyone {
		ns.generation, ns.told = ns.generation+1, list
		if c.cluster != nil {
			names := make([]string, len(list))
			for i, n := range list {
				names[i] = n.Name
			}
			c.cluster.SetNodes(names)
		}
	}
	for _, m := range wire.NewNodes(ns.generation, list) {
		for id := range c.peers {
			if everyone || ns.untold[id] {
				c.send(id, m)
			}
		}
	}
	clear(ns.untold)
}
