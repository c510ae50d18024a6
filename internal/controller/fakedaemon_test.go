// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

// fakeDaemon is a real client of the wire with a gate made of maps.
type fakeDaemon struct {
	client *wire.Client
	node   string
	// settle makes the controller see what the test has changed: the race detector does not follow datagrams.
	settle func()
	// connected is closed when the first session begins. The controller learns of it before the client does.
	connected chan struct{}
	connects  sync.Once

	mu           sync.Mutex
	table        map[netip.AddrPort]wire.Service
	backends     map[netip.AddrPort]*wire.Backends // the last of each service
	history      []string                          // "address: states" of all
	refused      map[netip.AddrPort][]string
	moved        []*wire.Moved                    // as received
	last         map[netip.AddrPort]monotime.Time // last packet
	open         uint32                           // open flows of draining pods
	mute         bool                             // do not answer that pods listen
	deaf         bool                             // do not answer that pods are drained
	seq          uint64
	loads        map[uint64]uint32 // open flows of pods, as last received
	loadMessages int               // messages with these
	nodes        []string          // as last received, with their addresses
	infos        []wire.NodeInfo   // the same
	withTags     bool              // the message carried what is known of tags
	tagKeys      *wire.TagKeys     // as last received
	freezes      []*wire.Freeze    // as received
	stuck        chan struct{}     // if set: Backends are not handled before it is closed
	images       []*wire.Images    // as received, in this session and earlier ones
	holders      []*wire.Holders   // likewise
	needed       []string          // repositories, as last received
	neededTimes  int               // how often
	inspect      func(*wire.Inspect) wire.Message
}

func (d *fakeDaemon) services(full bool, upserts []wire.Service, removals []netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if full {
		clear(d.table)
	}
	for _, s := range upserts {
		d.table[s.Addr] = s
	}
	for _, a := range removals {
		delete(d.table, a)
		delete(d.backends, a)
	}
}

func (d *fakeDaemon) receive(m wire.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if stuck := d.stuck; stuck != nil {
		d.mu.Unlock()
		<-stuck
		d.mu.Lock()
	}
	switch m := m.(type) {
	case *wire.Nodes:
		if m.Piece == 0 {
			d.nodes, d.infos = nil, nil
		}
		d.withTags = m.WithTags
		d.infos = append(d.infos, m.Nodes...)
		for _, n := range m.Nodes {
			d.nodes = append(d.nodes, n.Name+"="+n.Addr.String())
		}
	case *wire.Images:
		d.images = append(d.images, m)
	case *wire.Repositories:
		if m.Piece == 0 {
			d.needed, d.neededTimes = nil, d.neededTimes+1
		}
		d.needed = append(d.needed, m.Names...)
	case *wire.Holders:
		d.holders = append(d.holders, m)
	case *wire.Inspect:
		if d.inspect == nil {
			return
		}
		if a := d.inspect(m); a != nil {
			d.client.Send(a)
		}
	case *wire.TagKeys:
		d.tagKeys = m
	case *wire.Loads:
		d.loadMessages++
		for _, l := range m.Pods {
			d.loads[l.PodID] = l.OpenFlows
		}
	case *wire.Moved:
		if _, has := d.table[m.To]; !has {
			d.moved = append(d.moved, m)
		}
	case *wire.Freeze:
		d.freezes = append(d.freezes, m)
	case *wire.Refuse:
		d.refused[m.Service] = append(d.refused[m.Service], m.Reason)
	case *wire.Backends:
		if old := d.backends[m.Service]; old != nil && old.Generation >= m.Generation {
			return
		}
		d.backends[m.Service] = m
		d.history = append(d.history, fmt.Sprintf("%v:%s", m.Service, states(m)))
		for _, b := range m.Pods {
			switch {
			case b.Node != d.node:
			case b.State == wire.PodStarting && !d.mute:
				d.client.Send(&wire.Listening{Service: m.Service, PodID: b.PodID, At: monotime.Now()})
			case b.State == wire.PodDraining && !d.deaf:
				d.client.Send(&wire.Quiet{Service: m.Service, PodID: b.PodID, Generation: m.Generation,
					LastPacket: d.last[m.Service], OpenFlows: d.open})
			}
		}
	}
}

// states returns the states of all pods of a message, as in " starting serving".
func states(m *wire.Backends) string {
	s := ""
	if m != nil {
		for _, b := range m.Pods {
			s += " " + map[wire.PodState]string{wire.PodStarting: "starting", wire.PodServing: "serving",
				wire.PodDraining: "draining"}[b.State]
		}
	}
	return s
}

// syn reports a SYN that finds no pod.
func (d *fakeDaemon) syn(a netip.AddrPort) {
	d.settle()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seq++
	now := monotime.Now()
	d.last[a] = now
	d.client.Send(&wire.Wake{Service: a, Seq: d.seq, SYNSeen: now.Add(-50 * time.Microsecond), Noticed: now, Parked: 1})
}

// send sends a message once there is a session: some are dropped without one.
func (d *fakeDaemon) send(m wire.Message) {
	<-d.connected
	d.client.Send(m)
}

// pods returns the states of a service's pods, as the daemon has them.
func (d *fakeDaemon) pods(a netip.AddrPort) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return states(d.backends[a])
}

func (d *fakeDaemon) backend(a netip.AddrPort, i int) wire.Backend {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.backends[a].Pods[i]
}

func (d *fakeDaemon) reasons(a netip.AddrPort) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.refused[a])
}

func (d *fakeDaemon) has(a netip.AddrPort) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.table[a]
	return ok
}

// set changes the daemon's state or behavior.
func (d *fakeDaemon) set(f func(*fakeDaemon)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}
