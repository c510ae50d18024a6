// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"net/netip"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/lab/wired"
)

// startDaemon starts daemon n.
func (f *fleet) startDaemon(n int) (*daemon, error) {
	d := &daemon{fleet: f, number: n, serving: make([]uint32, f.params.Services)}
	ready := make(chan struct{})
	defer close(ready)
	var err error
	d.client, err = wire.NewClient(wire.ClientConfig{
		Server: f.leader.Addr, Key: f.key.ForNode(wired.NodeName(n)), Node: wired.NodeName(n),
		First:     []wire.Message{&wire.Node{Addr: wired.NodeAddr(n)}},
		Connected: func() { <-ready; d.connected() }, Services: d.services, Kept: d.kept,
		Receive: d.receive,
	})
	return d, err
}

func (d *daemon) connected() {
	d.epoch++
	d.warm, d.gathering = 0, d.fleet.gathering.Load()
	d.gathering.connected.reach(d.number)
}

func (d *daemon) services(full bool, upserts []wire.Service, _ []netip.AddrPort) {
	if full && len(upserts) == d.fleet.params.Services {
		d.gathering.table.reach(d.number)
	}
}

// kept records that the new leader has the services that the daemon has.
func (d *daemon) kept() { d.gathering.table.reach(d.number) }

func (d *daemon) receive(m wire.Message) {
	switch m := m.(type) {
	case *wire.Nodes:
		if m.Piece == 0 {
			d.nodes = 0
		}
		if d.nodes += len(m.Nodes); m.Piece == m.Pieces-1 && d.nodes == d.fleet.params.Daemons {
			d.gathering.nodes.reach(d.number)
		}
	case *wire.Backends:
		for i := range m.Pods {
			d.pod(m.Service, &m.Pods[i])
		}
	}
}

// pod handles a pod as gates do, that of its home node and all others.
func (d *daemon) pod(service netip.AddrPort, b *wire.Backend) {
	if b.State == wire.PodStarting && b.Node == wired.NodeName(d.number) {
		_ = d.client.Send(&wire.Listening{Service: service, PodID: b.PodID, At: monotime.Now()})
	}
	i := wired.ServiceNumber(service.Addr())
	if b.State != wire.PodServing || d.serving[i] == d.epoch {
		return
	}
	known := d.serving[i] != 0
	d.serving[i] = d.epoch
	if d.warm++; d.warm == d.gathering.warm {
		d.gathering.pods.reach(d.number)
	}
	if w := &d.fleet.wakes[i]; !known && w.asked.Load() != 0 {
		d.woken(service, b, w)
	}
}

// woken records that the daemon has the first serving pod of a service, and reports what its gate would see.
func (d *daemon) woken(service netip.AddrPort, b *wire.Backend, w *wake) {
	now := monotime.Now()
	if w.daemon == d.number {
		w.asker.Store(int64(now))
		_ = d.client.Send(&wire.Trace{Service: service, PodID: b.PodID, Released: now, ReleasedN: 1})
	}
	if b.Node == wired.NodeName(d.number) {
		_ = d.client.Send(&wire.Trace{Service: service, PodID: b.PodID, FirstSYNACK: now, FirstByte: now})
		_ = d.client.Send(&wire.Stats{Pods: []wire.PodStats{{
			Service: service, PodID: b.PodID, OpenFlows: 1, NewFlows: 1, BytesIn: 500, BytesOut: 1500, LastPacket: now,
		}}})
	}
	if int(w.known.Add(1)) == d.fleet.params.Daemons {
		w.all.Store(int64(now))
		if d.fleet.wakesLeft.Add(-1) == 0 {
			close(d.fleet.allKnow)
		}
	}
}

// wake asks for a pod of a service.
func (d *daemon) wake(i int) error {
	now := monotime.Now()
	w := &d.fleet.wakes[i]
	w.asked.Store(int64(now))
	return d.client.Send(&wire.Wake{
		Service: netip.AddrPortFrom(wired.ServiceAddr(i), wired.ServicePort), Seq: 1, SYNSeen: now, Noticed: now, Parked: 1,
	})
}
