// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/internal/wire"
)

// daemon is the state of Run. Its methods are split by job; run.go starts them.
type daemon struct {
	cfg     Config
	log     *slog.Logger
	gate    *gate.Gate
	client  *wire.Client // set before started is closed
	cri     *cri.Watcher // nil if Config.CRI is empty
	images  *images      // likewise
	key     nodeKey
	started chan struct{} // handlers of the client may run before NewClient has returned
	ctx     context.Context
	ready   sync.Once
	tabled  chan struct{}  // closed when the first table of services has arrived
	tasks   sync.WaitGroup // goroutines of single services

	// mu may be taken while a service's mu is held, but not the other way round. It guards:
	mu           sync.Mutex
	services     map[netip.AddrPort]*service
	left         map[netip.AddrPort]*left       // addresses that services have left
	moves        map[netip.AddrPort]*wire.Moved // what the next step of the table is to do, by the former address
	pods         int                            // number of pods of all services
	vips         map[netip.Addr]int             // number of announced service addresses, also of those in left, by VIP
	shared       map[*service]bool              // services with several pods
	lost         *time.Timer                    // warns if the controller stays away
	sessionStart monotime.Time                  // zero once pods that the session's controller does not list are removed

	tableMu sync.Mutex // held while the table of services changes, and while a former address ends

	refused     chan struct{} // holds one element: no controller answers with this node's key
	maintenance chan struct{} // holds one element: maintain has something to do
	sharedAdded chan struct{} // holds one element: balance has something to do

	nodesMu sync.Mutex  // held while the gate gets the accepted nodes; guards:
	later   *time.Timer // for when more of them have to tag their packets

	flows   atomic.Pointer[[]gate.Fill] // how full the flow table was at the last sweep; nil before
	members membership
	reports podReports
	usage   usageReader
	alerts  alerts
	fronts  fronts

	inspections inspections

	freezing freezing
	untold   untold
	fetching sync.Mutex // held while memory of a thawed pod is read
	cgroups  cgroups
	doors    *freezer.Doors // in a cluster, unless the machine has too few inotify instances; else nil
	visited  atomic.Uint64  // visits that have ended well
}

// usageReader is the state of reading the pods' usage from the container runtime.
type usageReader struct {
	at     time.Time     // when the last reading began
	busy   chan struct{} // holds one element while a reading is in progress
	failed bool          // the last reading failed; used by the reading in progress
}

// inspections limits the controller's questions about this node to one of each kind at a time: a channel holds one
// element while its kind is being answered.
type inspections struct{ gate, connected chan struct{} }

func newInspections() inspections {
	return inspections{gate: make(chan struct{}, 1), connected: make(chan struct{}, 1)}
}

func newDaemon(cfg Config, g *gate.Gate) *daemon {
	return &daemon{
		cfg: cfg, log: cfg.Log, gate: g, started: make(chan struct{}), tabled: make(chan struct{}),
		services: map[netip.AddrPort]*service{}, left: map[netip.AddrPort]*left{},
		moves: map[netip.AddrPort]*wire.Moved{}, vips: map[netip.Addr]int{}, shared: map[*service]bool{},
		refused: make(chan struct{}, 1), maintenance: make(chan struct{}, 1), sharedAdded: make(chan struct{}, 1),
		usage: usageReader{busy: make(chan struct{}, 1)}, alerts: alerts{active: map[alertKey]*alert{}},
		inspections: newInspections(),
		members:     membership{self: cfg.NodeAddr}, fronts: newFronts(),
		freezing: freezing{pods: map[uint64]*still{}, records: freezeRecordsIn(cfg.RunDir)},
		cgroups:  freezer.New(cfg.CgroupRoot),
	}
}

// service returns the service with an address, or the one that had it until now, or nil.
func (d *daemon) service(a netip.AddrPort) *service {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.left[a]; l != nil {
		return l.service
	}
	return d.services[a]
}

// leftBy returns the addresses that a service has left. d.mu is held.
func (d *daemon) leftBy(s *service) (addrs []netip.AddrPort) {
	for a, l := range d.left {
		if l.service == s {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// allServices returns all services, in no particular order.
func (d *daemon) allServices() []*service {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]*service, 0, len(d.services))
	for _, s := range d.services {
		out = append(out, s)
	}
	return out
}

// send queues a message to the controller. It fails only if the queue is full or the daemon is ending.
func (d *daemon) send(m wire.Message) {
	<-d.started
	if err := d.client.Send(m); err != nil && !errors.Is(err, wire.ErrClosed) {
		d.log.Error("cannot send to the controller", "message", m.Type(), "error", err)
	}
}
