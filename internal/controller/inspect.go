// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

const (
	// inspectPatience is how long daemons may take to answer.
	inspectPatience = 2 * time.Second
	// Answers are reused for inspectFresh, or for inspectShare per node if that is longer. So the load does not
	// depend on the number of users, and stays below 200 questions per second.
	inspectFresh = time.Second
	inspectShare = 5 * time.Millisecond
	// mostPairs bounds the pairs of a client and a service that all nodes together are asked for; leastPairs is the
	// minimum for each node.
	mostPairs  = 20_000
	leastPairs = 16
)

// parkedTable is the table of the parked SYNs.
const parkedTable = "parked"

// inspector asks the daemons for the state of their gates. It keeps answers while they are fresh, and belongs to the
// loop.
type inspector struct {
	loop    *loop
	daemons *daemons
	table   *table

	patience, fresh  time.Duration
	number           uint64
	gates, connected *inspection // nil if there is none that is fresh
}

// inspection is a question to all daemons.
type inspection struct {
	number  uint64
	asked   int             // daemons
	waiting map[uint64]bool // sessions that have not answered
	done    chan struct{}   // closed when the rest is complete, and no longer changes
	over    bool            // done is closed
	nodes   []status.Gate
	pairs   map[clientOf]uint64
	others  uint64
	silent  []string
	result  status.Connections
}

// clientOf is a client of a service.
type clientOf struct {
	client  netip.Addr
	service v1alpha1.Key
}

func (o *inspector) askGates() *inspection {
	if o.gates == nil {
		o.gates = o.ask(0)
	}
	return o.gates
}

func (o *inspector) askConnected() *inspection {
	if o.connected == nil {
		each := mostPairs / max(1, len(o.daemons.peers))
		o.connected = o.ask(uint16(min(max(each, leastPairs), wire.MaxConnected)))
	}
	return o.connected
}

// ask asks all daemons.
func (o *inspector) ask(most uint16) *inspection {
	o.number++
	i := &inspection{
		number: o.number, asked: len(o.daemons.peers), waiting: make(map[uint64]bool, len(o.daemons.peers)),
		done: make(chan struct{}), nodes: []status.Gate{}, pairs: map[clientOf]uint64{},
	}
	for id := range o.daemons.peers {
		i.waiting[id] = true
		o.daemons.send(id, &wire.Inspect{Number: o.number, Most: most})
	}
	o.loop.after(o.patience, func() { o.end(i) })
	o.endIfComplete(i)
	return i
}

// gateState takes an answer.
func (o *inspector) gateState(from wire.Peer, m *wire.GateState) {
	i := o.gates
	if !i.takes(from, m.Number) {
		return
	}
	g := status.Gate{
		Node: from.Node, Tables: make([]status.GateTable, 0, len(m.Tables)),
		Counters: make(map[string]uint64, len(m.Counters)), Interfaces: make(map[string]string, len(m.Interfaces)),
	}
	for _, t := range m.Tables {
		g.Tables = append(g.Tables, status.GateTable(t))
		if t.Name == parkedTable {
			g.Parked = t.Used
		}
	}
	for _, c := range m.Counters {
		g.Counters[c.Name] = c.Value
	}
	for _, n := range m.Interfaces {
		g.Interfaces[n.Name] = n.Mode
	}
	i.nodes = append(i.nodes, g)
	o.endIfComplete(i)
}

// connections handles an answer. Connections to addresses that no service has count as others.
func (o *inspector) connections(from wire.Peer, m *wire.Connected) {
	i := o.connected
	if !i.takes(from, m.Number) {
		return
	}
	i.others += m.Others
	for _, p := range m.Pairs {
		if s := o.table.byAddr[p.Service]; s != nil {
			i.pairs[clientOf{p.Client, s.key}] += uint64(p.Open)
		} else {
			i.others += uint64(p.Open)
		}
	}
	o.endIfComplete(i)
}

// takes records that a daemon has answered, and reports whether its answer was awaited.
func (i *inspection) takes(from wire.Peer, number uint64) bool {
	if i == nil || i.over || i.number != number || !i.waiting[from.ID] {
		return false
	}
	delete(i.waiting, from.ID)
	return true
}

// left stops waiting for a daemon that has left.
func (o *inspector) left(p wire.Peer) {
	for _, i := range []*inspection{o.gates, o.connected} {
		if i != nil && !i.over && i.waiting[p.ID] {
			delete(i.waiting, p.ID)
			o.endIfComplete(i)
		}
	}
}

func (o *inspector) endIfComplete(i *inspection) {
	if len(i.waiting) == 0 {
		o.end(i)
	}
}

// end completes an inspection. Its answers are reused while they are fresh.
func (o *inspector) end(i *inspection) {
	if i.over {
		return
	}
	i.over = true
	for id := range i.waiting {
		if p, there := o.daemons.peers[id]; there {
			i.silent = append(i.silent, p.Node)
			i.nodes = append(i.nodes, status.Gate{Node: p.Node, Silent: true, Tables: []status.GateTable{}})
		}
	}
	slices.Sort(i.silent)
	slices.SortFunc(i.nodes, func(a, b status.Gate) int { return strings.Compare(a.Node, b.Node) })
	i.result = most(i.pairs, i.others)
	i.result.Silent, i.pairs, i.waiting = i.silent, nil, nil
	close(i.done)
	o.loop.after(max(o.fresh, time.Duration(i.asked)*inspectShare), func() {
		if o.gates == i {
			o.gates = nil
		}
		if o.connected == i {
			o.connected = nil
		}
	})
}

// most returns the pairs with the most connections.
func most(pairs map[clientOf]uint64, others uint64) status.Connections {
	list := make([]status.ConnectionsOf, 0, len(pairs))
	for p, open := range pairs {
		list = append(list, status.ConnectionsOf{Client: p.client, Service: string(p.service), Open: open})
	}
	slices.SortFunc(list, func(a, b status.ConnectionsOf) int {
		return cmp.Or(cmp.Compare(b.Open, a.Open), a.Client.Compare(b.Client), strings.Compare(a.Service, b.Service))
	})
	n := min(len(list), wire.MaxConnected)
	for _, c := range list[n:] {
		others += c.Open
	}
	return status.Connections{Most: slices.Clone(list[:n]), Others: others}
}
