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
	"wangell.loutres.me/internal/base/tasks"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/internal/wire"
)

// daemon is the state of Run. Its methods are in the file of their subject.
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
	tabled  chan struct{} // closed when the first table of services has arrived
	tasks   tasks.Group   // goroutines of single services

	// mu may be taken while a service's mu is held, but not the other way round. It guards:
	mu           sync.Mutex
	services     map[netip.AddrPort]*service
	left         map[netip.AddrPort]*left       // addresses that services have left
	moves        map[netip.AddrPort]*wire.Moved // to be made by the next step of the table, by former address
	pods         int                            // number of pods of all services
	vips         map[netip.Addr]int             // number of announced service addresses, including those in left, by VIP
	shared       map[*service]bool              // services with several pods
	lost         *time.Timer                    // warns if the controller stays away
	sessionStart monotime.Time                  // zero once removeUnlisted has run in this session

	tableMu sync.Mutex // held while the table of services changes, and while a former address ends

	refused     chan struct{} // holds one element: no controller answers with this node's key
	maintenance chan struct{} // holds one element: maintain has something to do
	sharedAdded chan struct{} // holds one element: balance has something to do

	nodesMu sync.Mutex  // held while the gate gets the accepted nodes; guards:
	later   *time.Timer // fires when more of them have to tag their packets

	flows   atomic.Pointer[[]gate.Fill] // how full the flow table was at the last sweep; nil before
	members membership
	reports podReports
	usage   usageReader
	alerts  alerts
	fronts  fronts

	inspections inspections

	freezing    frozenPods
	thawReports thawReports
	fetching    sync.Mutex // held while memory of a thawed pod is read
	cgroups     cgroups
	doors       *freezer.Doors // in a cluster, unless the machine has too few inotify instances; else nil
	visited     atomic.Uint64  // visits that have ended well
}

// usageReader tracks readings of the pods' usage from the container runtime.
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
		freezing: frozenPods{pods: map[uint64]*frozenPod{}, records: freezeRecordsIn(cfg.RunDir)},
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

// notify makes the receiver of a channel with room for one element look for work.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run runs the daemon until ctx ends. clean reports whether the gate is to be removed after that.
func (d *daemon) run(ctx context.Context) (clean bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.ctx = ctx
	if d.cfg.CRI != "" {
		if d.cri, err = cri.New(cri.Config{Endpoint: d.cfg.CRI, OnPodReport: d.reportPod, Log: d.log}); err != nil {
			return false, err
		}
		if d.images, err = d.newImages(d.cfg.CRI, d.send); err != nil {
			return false, err
		}
		d.images.mirror = d.newMirror()
		if d.cfg.CgroupRoot != "" {
			doors, err := freezer.New(d.cfg.CgroupRoot).Doors()
			if err != nil {
				d.log.Warn("no pod is frozen on this node: processes that enter it cannot be watched", "error", err)
			} else {
				d.doors = doors
				defer doors.Close()
			}
		}
	}
	if err := d.cfg.mayThaw(d.freezing.records); err != nil {
		return false, err
	}
	stopHTTP, err := d.cfg.serveHTTP(d.handler())
	if err != nil {
		return false, err
	}
	defer stopHTTP()
	d.adopt()
	firstKey, err := d.gate.FirstTagKey()
	if err != nil {
		return false, err
	}
	d.client, err = wire.NewClient(wire.ClientConfig{
		Server: d.cfg.Server, Key: d.cfg.Keys.Node, Node: d.cfg.Node, Log: d.log, First: d.firstMessages(firstKey),
		Keepalive:    d.cfg.Keepalive,
		Connected:    d.connected,
		Disconnected: d.disconnected,
		Unanswered:   d.unanswered,
		Services:     d.setServices,
		Kept:         d.wakePending,
		Receive:      d.receive,
	})
	if err != nil {
		return false, err
	}
	close(d.started)
	stopEvents, err := d.gate.Events(d.event)
	if err != nil {
		return false, errors.Join(err, d.client.Close())
	}
	var group sync.WaitGroup
	if d.cfg.Follow != nil {
		group.Go(func() { d.cfg.Follow(ctx, d.moved) })
	}
	if d.cfg.Enrol != nil {
		group.Go(func() { d.renewKeys(ctx) })
	}
	if d.cri != nil {
		group.Go(func() { d.cri.Run(ctx) })
		group.Go(func() { d.images.keeper.Run(ctx) })
		if d.cfg.LazySocket != "" {
			group.Go(func() { d.watchUnreadable(ctx) })
		}
		if d.images.mirror != nil {
			group.Go(func() { d.runMirror(ctx) })
		}
	}
	if d.cfg.NodeAddr.IsValid() {
		group.Go(func() { d.balance(ctx) })
	}
	if d.cfg.EnvoySocket != "" {
		group.Go(func() { d.runFronts(ctx) })
	}
	if d.cfg.Fronts != nil {
		group.Go(func() { d.cfg.Fronts(ctx, d.setFronts) })
	}
	d.maintain(ctx)
	d.thawAll() // nothing would thaw them once this process has ended
	cancel()
	group.Wait()
	leave := d.client.Leave
	if clean = d.cfg.Clean != nil && d.cfg.Clean(); clean {
		leave = d.client.Close
		if d.images != nil {
			if err := d.images.release(); err != nil {
				d.log.Warn("images stay pinned in the container runtime", "error", err)
			}
			d.removeHosts()
		}
	}
	err = errors.Join(stopEvents(), leave())
	d.endTasks()
	return clean, err
}

// endTasks stops the goroutines of single services and waits for them. d.ctx has ended.
func (d *daemon) endTasks() {
	d.mu.Lock()
	if d.lost != nil {
		d.lost.Stop()
	}
	d.mu.Unlock()
	d.nodesMu.Lock()
	if d.later != nil {
		d.later.Stop()
	}
	d.nodesMu.Unlock()
	d.thawReports.end()
	for _, s := range d.allServices() {
		s.mu.Lock()
		for _, p := range s.pods {
			d.endWatch(p)
			p.endProbes()
		}
		s.front.endWatch()
		s.mu.Unlock()
	}
	d.tasks.Stop()
}

// adopt takes over the services and pods that an earlier daemon left in the gate.
func (d *daemon) adopt() {
	for _, a := range d.gate.Services() {
		s := &service{addr: a, pods: map[uint64]*pod{}}
		d.services[a] = s
		d.adoptFronts(s)
		for _, id := range d.gate.PodIDs(a) {
			if gate.IsFront(id) {
				continue
			}
			state, _ := d.gate.PodState(a, id)
			deaf := state == gate.PodDeaf
			p := &pod{id: id, serving: state == gate.PodServing || deaf, since: monotime.Now()}
			s.pods[id] = p
			d.pods++
			if deaf {
				d.retryLater(s, p)
			}
		}
		if len(s.pods) > 1 {
			d.shared[s] = true
		}
		d.adoptLeft(s)
		// SYNs that the earlier daemon kept for further pods of a wake.
		d.releaseParked(a)
	}
	d.adoptFrozen()
	if d.pods > 0 {
		d.maintenance <- struct{}{}
	}
}

// event handles an event of the gate. It runs on the goroutine that reads the ring buffer, so it must not wait.
func (d *daemon) event(e gate.Event) {
	switch e.Kind {
	case gate.EventWake:
		d.wake(e.Service, e.At)
	case gate.EventOverBudget:
		d.overBudget(e)
	case gate.EventDenied:
		d.denied(e)
	case gate.EventListen:
		d.listenEvent(e)
	case gate.EventThaw:
		d.thawEvent(e)
	case gate.EventDeaf:
		d.tasks.Go(func() { d.deafEvent(e) })
	case gate.EventFirstSYNACK, gate.EventFirstByte:
		d.traceEvent(e)
	}
}
