// SPDX-License-Identifier: Apache-2.0

// Package controller keeps services: it gives them addresses, wakes them when a daemon asks, puts
// them to sleep, and tells users what happens. What to do is decided by internal/wake; how to run a
// pod is known by a runtime.Runtime; daemons are reached by internal/wire.
//
// One goroutine, the loop, owns all services and runs all their state machines. It never waits: what
// may take long (starting, stopping, pulling, writing) has goroutines of its own, which post what
// came of it to the loop. A sleeping service costs memory only.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// Config configures a Controller.
type Config struct {
	// Runtime runs the pods. The controller does not close it.
	Runtime runtime.Runtime
	// Conn is the socket for the daemons. The controller owns it and closes it in the end, unless New fails.
	Conn *net.UDPConn
	Key  wire.Key
	// Addresses is the range of service addresses (IPv4, /8 to /30) from which Apply gives. The zero value: services
	// come with their addresses, by Put.
	Addresses netip.Prefix
	// StateDir is the folder for addresses.json; it is made if it is missing. Without Addresses it is not used.
	StateDir string
	// Node is the name of the node on which the runtime's pods run that do not tell their own.
	Node string
	// Log may be nil.
	Log *slog.Logger
	// MaxConcurrentStarts is how many pods are started at once. Default: twice the cores, at least 4; on a cluster,
	// whose machines are others, clusterStarts.
	MaxConcurrentStarts int
	// MaxConcurrentPulls is how many images are fetched ahead of need at once. Default: 4.
	MaxConcurrentPulls int
}

// clusterStarts bounds the starts under way on a cluster: each is a goroutine that waits.
const clusterStarts = 1024

// queueSize is how many events wait for the loop before those who post them have to wait too.
const queueSize = 4096

// Controller keeps a set of services. Make one with New; give it services with Apply, all at once, or with Put, Delete
// and Synced, one by one, but not both ways. End it with Shutdown or Detach.
type Controller struct {
	cfg    Config
	log    *slog.Logger
	server *wire.Server
	hub    hub
	ring   lifecycle.Ring
	meters *meters
	// changed are the services whose status changed.
	changed *changedSet

	queue   chan func()
	done    chan struct{} // closed when the loop has ended
	quit    chan struct{} // closed to end it
	logDone chan struct{}
	ending  sync.Once
	ended   chan struct{}
	ready   atomic.Bool // services were applied

	ctx     context.Context // of starts, pulls and reading exits; ends with the controller
	cancel  context.CancelFunc
	workers sync.WaitGroup
	stopCtx context.Context // of stops
	giveUp  context.CancelFunc
	slots   chan struct{} // one element for each start under way
	images  *preparer

	applyMu sync.Mutex // guards what follows, and makes Apply, Put and Delete take turns
	applied map[runtime.Key]*wanted
	holders map[netip.AddrPort]runtime.Key // of what was Put
	book    addressBook
	adopted bool
	closed  bool

	cluster runtime.Cluster // the runtime, if it is one
	began   time.Time       // with the monotonic clock

	// What follows belongs to the loop.
	services  map[runtime.Key]*service
	byAddr    map[netip.AddrPort]*service
	byRuntime map[string]*pod
	byWire    map[uint64]*pod
	peers     map[uint64]wire.Peer
	nodes     nodes
	loads     map[*service]bool // that follow their load now
	relay     relay             // of open flows of pods
	early     []func()          // what the cluster told before the services were known
	due       deadlines
	removals  []netip.AddrPort // of services that are gone, not yet told to the server
	orphans   int              // pods of no service that are being stopped
	synced    bool             // the first set of services is complete
	alone     bool             // no daemon has been connected for alonePatience
	idle      chan struct{}    // if set: closed as soon as no pod is left
	closing   bool             // Shutdown: all services are being removed
	halted    bool             // nothing may be started or stopped any more
}

// New makes a controller and begins to talk to daemons. There are no services before the first
// Apply, and daemons are told none.
func New(cfg Config) (*Controller, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cluster, _ := cfg.Runtime.(runtime.Cluster)
	if cfg.MaxConcurrentStarts <= 0 && cluster != nil {
		cfg.MaxConcurrentStarts = clusterStarts
	}
	if cfg.MaxConcurrentStarts <= 0 {
		cfg.MaxConcurrentStarts = max(4, 2*goruntime.NumCPU())
	}
	if cfg.MaxConcurrentPulls <= 0 {
		cfg.MaxConcurrentPulls = 4
	}
	book, err := openBook(cfg)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		cfg: cfg, log: cfg.Log, meters: newMeters(), changed: newChangedSet(),
		queue: make(chan func(), queueSize), done: make(chan struct{}), quit: make(chan struct{}),
		logDone: make(chan struct{}), ended: make(chan struct{}),
		slots:   make(chan struct{}, cfg.MaxConcurrentStarts),
		applied: map[runtime.Key]*wanted{}, holders: map[netip.AddrPort]runtime.Key{}, book: book,
		services: map[runtime.Key]*service{}, byAddr: map[netip.AddrPort]*service{},
		byRuntime: map[string]*pod{}, byWire: map[uint64]*pod{}, peers: map[uint64]wire.Peer{},
		nodes: nodes{byName: map[string]*node{}, untold: map[uint64]bool{}}, loads: map[*service]bool{}, relay: relay{due: map[*pod]bool{}}, cluster: cluster, began: time.Now(),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.stopCtx, c.giveUp = context.WithCancel(context.Background())
	c.images = newPreparer(c)
	go c.writeLog(c.hub.subscribe(context.Background()))
	go c.loop()
	c.server, err = wire.NewServer(wire.ServerConfig{
		Conn: cfg.Conn, Key: cfg.Key, Log: cfg.Log,
		Joined:  func(p wire.Peer) { c.post(func() { c.joined(p) }) },
		Left:    func(p wire.Peer) { c.post(func() { c.left(p) }) },
		Receive: func(p wire.Peer, m wire.Message) { c.post(func() { c.receive(p, m) }) },
	})
	if err != nil {
		c.end()
		return nil, err
	}
	c.workers.Go(c.readExits)
	if c.cluster != nil {
		c.workers.Go(c.readCluster)
	}
	c.after(nodesPause, c.openNodes)
	return c, nil
}

// loop runs what is posted, and timers of the state machines.
func (c *Controller) loop() {
	defer close(c.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var armed monotime.Time
	for {
		select {
		case f := <-c.queue:
			f()
		case <-timer.C:
			armed = 0
		case <-c.quit:
			return
		}
		c.runDue()
		c.flushRemovals()
		c.flushNodes()
		if at := c.due.first(); at != armed {
			armed = at
			if at == 0 {
				timer.Stop()
			} else {
				timer.Reset(at.Sub(monotime.Now()))
			}
		}
	}
}

// post has the loop run f. After the loop's end f is dropped.
func (c *Controller) post(f func()) {
	select {
	case c.queue <- f:
	case <-c.done:
	}
}

// call has the loop run f and waits for it. It reports false if the loop has ended.
func (c *Controller) call(f func()) bool {
	ran := make(chan struct{})
	c.post(func() { f(); close(ran) })
	select {
	case <-ran:
		return true
	case <-c.done:
		return false
	}
}

// ErrClosed: the controller was ended.
var ErrClosed = errors.New("controller: closed")

// Shutdown ends the controller and all pods, each with its grace, and waits until they are gone. When
// ctx ends before, it returns with pods left, and its error tells how many.
func (c *Controller) Shutdown(ctx context.Context) error {
	c.applyMu.Lock()
	c.closed = true
	c.applyMu.Unlock()
	c.images.stop()
	idle := make(chan struct{})
	c.call(func() {
		c.closing, c.idle = true, idle
		for _, s := range c.services {
			s.again = nil
			c.step(s, lifecycle.Deleted{})
		}
		c.checkIdle()
	})
	var err error
	select {
	case <-idle:
	case <-c.done:
	case <-ctx.Done():
		left := 0
		c.call(func() {
			left = c.orphans
			for _, s := range c.services {
				left += len(s.pods)
			}
		})
		err = fmt.Errorf("shutdown: %d pods are not gone yet: %w", left, ctx.Err())
	}
	c.end()
	return err
}

// Detach ends the controller and leaves pods running, for the next one to adopt. Pods that are just
// being started are given up.
func (c *Controller) Detach() {
	c.applyMu.Lock()
	c.closed = true
	c.applyMu.Unlock()
	c.images.stop()
	c.end()
}

// end stops all goroutines.
func (c *Controller) end() {
	c.ending.Do(func() {
		defer close(c.ended)
		c.call(func() { c.halted = true })
		c.cancel()
		c.giveUp()
		c.workers.Wait()
		if c.server != nil {
			if err := c.server.Close(); err != nil {
				c.log.Warn("the socket for daemons cannot be closed", "error", err)
			}
		}
		close(c.quit)
		<-c.done
		c.hub.close()
		<-c.logDone
	})
	<-c.ended
}

// checkIdle tells Shutdown when no pod is left.
func (c *Controller) checkIdle() {
	if c.idle != nil && len(c.services) == 0 && c.orphans == 0 {
		close(c.idle)
		c.idle = nil
	}
}

// Ready tells why the controller cannot wake services yet; nil if it can.
func (c *Controller) Ready() error {
	if !c.ready.Load() {
		return errors.New("no services were applied yet")
	}
	daemons := 0
	if !c.call(func() { daemons = len(c.peers) }) {
		return ErrClosed
	}
	if daemons == 0 {
		return errors.New("no daemon is connected")
	}
	return nil
}

// Subscribe returns what happens from now on, until ctx ends. A subscriber that does not read misses
// events (Event.Lost), but stops nothing.
func (c *Controller) Subscribe(ctx context.Context) <-chan Event { return c.hub.subscribe(ctx) }

// writeLog writes reports to the log, on a goroutine of its own: a log may be slow.
func (c *Controller) writeLog(events <-chan Event) {
	defer close(c.logDone)
	levels := map[string]slog.Level{SeverityInfo: slog.LevelInfo, SeverityWarning: slog.LevelWarn, SeverityError: slog.LevelError}
	for e := range events {
		if e.Lost > 0 {
			c.log.Warn("events were not logged: the log is too slow", "events", e.Lost)
		}
		switch {
		case e.Kind == EventReport && e.Service != "":
			c.log.Log(context.Background(), levels[e.Severity], fmt.Sprintf("service %s: %s", e.Service, e.Text), "service", string(e.Service))
		case e.Kind == EventReport:
			c.log.Log(context.Background(), levels[e.Severity], e.Text)
		case e.Kind == EventState:
			c.log.Debug("state", "service", string(e.Service), "state", e.State)
		}
	}
}
