// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/wire"
)

// milestone is something that every daemon reaches.
type milestone struct {
	want int
	done chan struct{} // closed when all have reached it

	mu    sync.Mutex
	begin time.Time
	took  map[int]time.Duration // by daemon
}

func newMilestone(want int) *milestone {
	return &milestone{want: want, done: make(chan struct{}), begin: time.Now(), took: map[int]time.Duration{}}
}

// reach records that a daemon has reached it; only the first time counts.
func (m *milestone) reach(daemon int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, again := m.took[daemon]; again {
		return
	}
	m.took[daemon] = time.Since(m.begin)
	if len(m.took) == m.want {
		close(m.done)
	}
}

// count returns how many daemons have reached it.
func (m *milestone) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.took)
}

// milliseconds returns the times, sorted.
func (m *milestone) milliseconds() []float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []float64
	for _, d := range m.took {
		all = append(all, milliseconds(d))
	}
	slices.Sort(all)
	return all
}

// gathering is a time at which all daemons connect to a controller.
type gathering struct {
	connected, table, nodes, pods *milestone
	warm                          int32 // services with a serving pod
}

func newGathering(daemons int, warm int) *gathering {
	return &gathering{
		connected: newMilestone(daemons), table: newMilestone(daemons), nodes: newMilestone(daemons),
		pods: newMilestone(daemons), warm: int32(warm),
	}
}

// wake is the wake of one service.
type wake struct {
	asked  atomic.Int64 // monotime.Time of the WAKE; 0 before it
	daemon int          // that asked
	asker  atomic.Int64 // monotime.Time at which that daemon had the serving pod
	known  atomic.Int32 // number of daemons that have it
	all    atomic.Int64 // monotime.Time at which the last daemon had it
}

// daemon is the wire's client over a simulated gate. Its fields are used by the client's handlers only.
type daemon struct {
	fleet  *fleet
	number int
	client *wire.Client

	gathering *gathering // of this session
	epoch     uint32     // number of this session
	serving   []uint32   // by service: the session in which it was reported to have a serving pod; 0 for none
	warm      int32      // services that were, in this session
	nodes     int        // of the list that is being received
}

// startDaemon starts daemon n.
func (f *fleet) startDaemon(n int) (*daemon, error) {
	d := &daemon{fleet: f, number: n, serving: make([]uint32, f.params.Services)}
	ready := make(chan struct{})
	defer close(ready)
	var err error
	d.client, err = wire.NewClient(wire.ClientConfig{
		Server: f.leader.addr, Key: f.key.ForNode(nodeName(n)), Node: nodeName(n),
		First:     []wire.Message{&wire.Node{Addr: nodeAddr(n)}},
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
	if b.State == wire.PodStarting && b.Node == nodeName(d.number) {
		_ = d.client.Send(&wire.Listening{Service: service, PodID: b.PodID, At: monotime.Now()})
	}
	i := serviceNumber(service)
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
	if b.Node == nodeName(d.number) {
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
		Service: netip.AddrPortFrom(serviceAddr(i), servicePort), Seq: 1, SYNSeen: now, Noticed: now, Parked: 1,
	})
}

// serviceNumber is the inverse of serviceAddr.
func serviceNumber(a netip.AddrPort) int {
	b := a.Addr().As4()
	return int(binary.BigEndian.Uint16(b[2:]))
}
