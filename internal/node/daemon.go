// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"wangell.loutres.me/internal/cri"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/wire"
)

// daemon is the state behind Run.
type daemon struct {
	cfg     Config
	log     *slog.Logger
	gate    *gate.Gate
	client  *wire.Client  // set once started is closed
	cri     *cri.Watcher  // nil on one machine
	started chan struct{} // the client's handlers may run before NewClient has returned
	ctx     context.Context
	ready   sync.Once
	tabled  chan struct{} // closed when the first table has come

	// mu guards what follows. It may be taken while a service's mu is held, not the other way round.
	mu       sync.Mutex
	services map[netip.AddrPort]*service
	pods     int                // pods of all services
	vips     map[netip.Addr]int // how many services that are announced have it
	shared   map[*service]bool  // those with several pods
	changed  chan struct{}      // a pod was added: the ticker has something to do
	sharing  chan struct{}      // there is one with several pods
	gone     *time.Timer        // tells that the controller has been away for long
	watchers sync.WaitGroup

	members  membership
	usage    usage
	met      monotime.Time // when the present session began; zero once what it did not tell of is forgotten. mu guards it
	sights   sights
	cleaning bool // the gate goes with the daemon; of run
}

// service is a service of the table. Its pods and what is told of it are guarded by mu, which is held while
// the gate is changed for it, so that messages and kernel events of one service take turns.
type service struct {
	mu         sync.Mutex
	addr       netip.AddrPort
	name       string
	idle       time.Duration
	generation uint64 // of the last Backends
	wakes      uint64
	pods       map[uint64]*pod
	crowd      crowd
	idleTold   monotime.Time // when Idle was sent last; zero if a packet came since
	announce   bool          // one of the nodes answers ARP for its address
	usage      bool          // the controller wants to know what its pods use
}

// pod is a pod of a service.
type pod struct {
	id      uint64
	addr    netip.AddrPort
	netns   string
	home    bool          // it is on this node, as far as is known: one that was adopted is not, before the controller says so
	state   wire.PodState // what the controller said; 0 if nothing in this session
	serving bool
	// restarting: its process ended, and it is not served until it listens again.
	restarting bool
	since      monotime.Time // when it began to serve
	watch      *watch        // until it listens
	trace      wire.Trace
	told       wire.PodStats // what the controller knows of its counts
	load       told          // home: what other nodes were told of its open flows
	own        readings      // not home: its open flows by this node
	draining   uint64        // generation of the Backends that drained it
}

func newDaemon(cfg Config, g *gate.Gate) *daemon {
	return &daemon{cfg: cfg, log: cfg.Log, gate: g, services: map[netip.AddrPort]*service{}, changed: make(chan struct{}, 1),
		vips: map[netip.Addr]int{}, shared: map[*service]bool{}, sharing: make(chan struct{}, 1),
		started: make(chan struct{}), tabled: make(chan struct{}), usage: usage{busy: make(chan struct{}, 1)}}
}

func (d *daemon) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.ctx = ctx
	stopHTTP, err := d.serveHTTP()
	if err != nil {
		return err
	}
	defer stopHTTP()
	if d.cfg.CRI != "" {
		if d.cri, err = cri.New(cri.Config{Endpoint: d.cfg.CRI, OnPodReport: d.seen, Log: d.log}); err != nil {
			return err
		}
	}
	d.adopt()
	var first []wire.Message
	if d.cfg.NodeAddr.IsValid() {
		first = append(first, &wire.Node{Addr: d.cfg.NodeAddr})
	}
	d.client, err = wire.NewClient(wire.ClientConfig{
		Server: d.cfg.Server, Key: d.cfg.Key, Node: d.cfg.Node, Log: d.log, First: first,
		Connected:    d.connected,
		Disconnected: d.disconnected,
		Services:     d.setServices,
		Receive:      d.receive,
	})
	if err != nil {
		return err
	}
	close(d.started)
	stopEvents, err := d.gate.Events(d.event)
	if err != nil {
		return errors.Join(err, d.client.Close())
	}
	var group sync.WaitGroup
	if d.cfg.Follow != nil {
		group.Go(func() { d.cfg.Follow(ctx, d.moved) })
	}
	if d.cri != nil {
		group.Go(func() { d.cri.Run(ctx) })
	}
	if d.cfg.NodeAddr.IsValid() {
		group.Go(func() { d.balance(ctx) })
	}
	d.tick(ctx)
	cancel()
	group.Wait()
	end := d.client.Leave
	if d.cleaning = d.cfg.Clean != nil && d.cfg.Clean(); d.cleaning {
		end = d.client.Close
	}
	err = errors.Join(stopEvents(), end())
	d.mu.Lock()
	if d.gone != nil {
		d.gone.Stop()
	}
	d.mu.Unlock()
	for _, s := range d.all() {
		s.mu.Lock()
		for _, p := range s.pods {
			d.endWatch(p)
		}
		s.mu.Unlock()
	}
	d.watchers.Wait()
	return err
}

// all returns the services.
func (d *daemon) all() []*service {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]*service, 0, len(d.services))
	for _, s := range d.services {
		out = append(out, s)
	}
	return out
}

// adopt takes over services and pods that an earlier daemon left in the gate.
func (d *daemon) adopt() {
	for _, a := range d.gate.Services() {
		s := &service{addr: a, pods: map[uint64]*pod{}}
		d.services[a] = s
		for _, id := range d.gate.PodIDs(a) {
			state, _ := d.gate.PodState(a, id)
			s.pods[id] = &pod{id: id, serving: state == gate.PodServing, since: monotime.Now()}
			d.pods++
		}
		if len(s.pods) > 1 {
			d.shared[s] = true
		}
		// What an earlier daemon kept for pods that did not listen yet.
		if n, err := d.gate.Release(a); err != nil {
			d.log.Error("parked SYNs cannot be released", "address", a, "released", n, "error", err)
		}
	}
	if d.pods > 0 {
		d.changed <- struct{}{}
	}
}

func (d *daemon) service(a netip.AddrPort) *service {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.services[a]
}

// goneAfter is how long the controller may be away before that is worth a warning: it is away for a moment whenever
// an instance ends.
const goneAfter = 2 * time.Second

// disconnected ends a session.
func (d *daemon) disconnected() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gone = time.AfterFunc(goneAfter, func() {
		if d.ctx.Err() == nil {
			d.log.Warn("the controller is gone: traffic goes on, sleeping services wake when it is back")
		}
	})
}

// connected begins a session. The controller may be another one, which counts generations anew.
func (d *daemon) connected() {
	d.mu.Lock()
	if d.gone != nil {
		d.gone.Stop()
	}
	d.met = monotime.Now()
	d.mu.Unlock()
	for _, s := range d.all() {
		s.mu.Lock()
		s.generation = 0
		for _, p := range s.pods {
			// Tell of every pod, so that the controller can say which are none of its own.
			p.told, p.load, p.state = wire.PodStats{}, told{}, 0
		}
		s.mu.Unlock()
	}
	d.members.begin()
	d.sights.tell(d.send)
}

// moved tells that the controller is elsewhere now.
func (d *daemon) moved(addr string) {
	if err := d.client.SetServer(addr); err != nil {
		d.log.Error("the controller's new address is of no use", "error", err)
	}
}

// setServices applies a step of the table.
func (d *daemon) setServices(full bool, upserts []wire.Service, removals []netip.AddrPort) {
	if full {
		there := make(map[netip.AddrPort]bool, len(upserts))
		for _, s := range upserts {
			there[s.Addr] = true
		}
		d.mu.Lock()
		for a := range d.services {
			if !there[a] {
				removals = append(removals, a)
			}
		}
		d.mu.Unlock()
	}
	vips := map[netip.Addr]bool{}
	for _, a := range removals {
		d.removeService(a, vips)
	}
	for _, u := range upserts {
		if err := d.setService(u, vips); err != nil {
			d.log.Error("a service cannot be served", "service", u.Name, "address", u.Addr, "error", err)
		}
	}
	if !full {
		d.announceSome(vips)
	} else {
		d.announce()
		for _, a := range d.gate.Pending() {
			// Its wake event went to an earlier daemon, or its WAKE to an earlier controller.
			d.wake(a, d.gate.SYNSeen(a))
		}
	}
	d.ready.Do(func() {
		close(d.tabled)
		if d.cfg.Ready != nil {
			d.cfg.Ready()
		}
	})
}

// setService adds or changes a service. If its VIP is announced now and was not, or the reverse, the VIP is added to vips.
func (d *daemon) setService(u wire.Service, vips map[netip.Addr]bool) error {
	_, err := d.gate.SetService(gate.Service{
		Addr: u.Addr, MaxParked: uint32(u.MaxParked), MaxParkedPerSource: uint32(u.MaxParkedPerSource),
		Affinity: u.Flags&wire.FlagAffinity != 0, PreferLocal: u.Flags&wire.FlagPreferLocal != 0, Retries: u.Retries,
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	s := d.services[u.Addr]
	if s == nil {
		s = &service{addr: u.Addr}
		d.services[u.Addr] = s
	}
	d.mu.Unlock()
	s.mu.Lock()
	s.name, s.idle = u.Name, time.Duration(u.IdleSeconds)*time.Second
	d.setAnnounce(s, u.Flags&wire.FlagAnnounce != 0, vips)
	s.usage = u.Flags&wire.FlagUsage != 0
	s.mu.Unlock()
	return nil
}

// removeService is the reverse of setService.
func (d *daemon) removeService(a netip.AddrPort, vips map[netip.Addr]bool) {
	d.mu.Lock()
	s := d.services[a]
	delete(d.services, a)
	d.mu.Unlock()
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		d.removePod(s, p)
	}
	d.share(s)
	d.setAnnounce(s, false, vips)
	if err := d.gate.RemoveService(a); err != nil {
		d.log.Error("a service cannot be removed", "service", s.name, "address", a, "error", err)
	}
}

// send queues a message; the only errors are those of a full queue or a daemon that ends.
func (d *daemon) send(m wire.Message) {
	<-d.started
	if err := d.client.Send(m); err != nil && !errors.Is(err, wire.ErrClosed) {
		d.log.Error("the controller cannot be told", "message", m.Type(), "error", err)
	}
}

// event handles what the gate tells. It runs on the goroutine that reads the ring buffer, so it must not wait.
func (d *daemon) event(e gate.Event) {
	switch e.Kind {
	case gate.EventWake:
		d.wake(e.Service, e.At)
	case gate.EventListen:
		d.listen(e)
	case gate.EventFirstSYNACK, gate.EventFirstByte:
		d.traced(e)
	}
}

// traced tells the controller of a wake's last steps.
func (d *daemon) traced(e gate.Event) {
	s := d.service(e.Service)
	if s == nil {
		return
	}
	s.mu.Lock()
	p := s.pods[e.Pod]
	if p == nil || !p.home {
		s.mu.Unlock()
		return // the home node sees it too, and sees all
	}
	if e.Kind == gate.EventFirstSYNACK {
		p.trace.FirstSYNACK = e.At
	} else {
		p.trace.FirstByte = e.At
	}
	t := p.trace
	s.mu.Unlock()
	t.Service, t.PodID = e.Service, e.Pod
	d.send(&t)
}
