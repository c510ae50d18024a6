// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	goruntime "runtime"
	"sync"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/controller/images"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// Config configures a Controller.
type Config struct {
	// Runtime runs the pods. The controller does not close it.
	Runtime runtime.Runtime
	// Conn is the socket for the daemons. The controller owns and closes it, unless New fails.
	Conn *net.UDPConn
	// Key is the master key of the wire, from which those of the nodes are derived.
	Key wire.Key
	// Keepalive is the interval of the daemons' keepalives, the same as theirs. The default is wire.DefaultKeepalive.
	Keepalive time.Duration
	// Node is the home node of the pods for which the runtime does not name one.
	Node string
	// Log may be nil.
	Log *slog.Logger
	// MaxServices is how many services the gates have room for (gate.Sizes). Default: 16,384.
	MaxServices int
	// MaxConcurrentStarts is the number of pods that are started at once. Default: twice the number of cores, at
	// least 4; clusterStarts on a cluster, whose pods start on other machines.
	MaxConcurrentStarts int
	// AwaitServices keeps daemons with the previous controller until Synced is called: HELLOs are not answered before
	// that.
	AwaitServices bool
	// ImageSettle is how long daemons may take to connect before the images of services are divided among their nodes.
	// Default: 3 s. Clusters only.
	ImageSettle time.Duration
	// ImageRetry is the first pause after kubelet could not pull an image ahead of need. Default: 10 s. Clusters only.
	ImageRetry time.Duration
	// Lazy is set if the RuntimeClass for lazy pulls exists. Clusters only.
	Lazy bool
	// MaxConcurrentPulls is the number of images that are fetched ahead of need at once. Default: 4.
	MaxConcurrentPulls int
	// Wake is called whenever the waterfall of a wake has changed. It must not block; may be nil.
	Wake func(lifecycle.Waterfall)
	// Caller is called with the trace of a request that has waited for a pod of a service. It must not block; may be nil.
	Caller func(v1alpha1.Key, wire.Caller)
	// OnHistory is called when the history of a service with spec.sleep.predict has grown. Its text, at most
	// forecast.MaxEncoded bytes, is the next controller's Service.History. It must not block; may be nil.
	OnHistory func(v1alpha1.Key, string)
}

// clusterStarts bounds the starts in progress on a cluster: each is a goroutine that waits.
const clusterStarts = 1024

// withDefaults fills in what is not set.
func (c Config) withDefaults(cluster bool) Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.MaxServices <= 0 {
		c.MaxServices = defaultMaxServices
	}
	if c.MaxConcurrentStarts <= 0 && cluster {
		c.MaxConcurrentStarts = clusterStarts
	}
	if c.MaxConcurrentStarts <= 0 {
		c.MaxConcurrentStarts = max(4, 2*goruntime.NumCPU())
	}
	if c.ImageSettle <= 0 {
		c.ImageSettle = images.DefaultSettle
	}
	if c.ImageRetry <= 0 {
		c.ImageRetry = images.DefaultRetry
	}
	if c.MaxConcurrentPulls <= 0 {
		c.MaxConcurrentPulls = 4
	}
	return c
}

// Controller keeps a set of services. Make one with New, give it services with Update, Put and Delete, and call Synced
// once it has the first complete set. End it with Shutdown or Detach.
type Controller struct {
	runtime runtime.Runtime
	log     *slog.Logger
	server  *wire.Server

	catalog  *catalog
	loop     *loop
	workers  *workers
	events   *hub
	engine   *engine
	adopter  *adopter
	receiver *receiver

	throttles *throttleWatch
	layers    *layerWatch

	ending  sync.Once
	ended   chan struct{} // closed when all goroutines have ended
	logDone chan struct{}
}

// New makes a controller and begins to talk to daemons. They get no services before Synced.
func New(cfg Config) (*Controller, error) {
	cluster, _ := cfg.Runtime.(runtime.Cluster)
	cfg = cfg.withDefaults(cluster != nil)
	c := &Controller{
		runtime: cfg.Runtime, log: cfg.Log, catalog: newCatalog(cfg.MaxServices), loop: newLoop(),
		workers: newWorkers(), events: &hub{},
		ended: make(chan struct{}), logDone: make(chan struct{}),
	}
	c.build(cfg, cluster)
	var err error
	c.server, err = wire.NewServer(wire.ServerConfig{
		Conn: cfg.Conn, Key: cfg.Key, Log: cfg.Log, AwaitTable: cfg.AwaitServices,
		Keepalive: cfg.Keepalive,
		Joined:    func(p wire.Peer) { c.loop.post(func() { c.receiver.joined(p) }) },
		Left:      func(p wire.Peer) { c.loop.post(func() { c.receiver.left(p) }) },
		Receive:   func(p wire.Peer, m wire.Message) { c.loop.post(func() { c.receiver.receive(p, m) }) },
	})
	if err != nil {
		c.workers.stop()
		return nil, err
	}
	c.engine.daemons.server = c.server
	events := c.events.subscribe(context.Background())
	go func() {
		defer close(c.logDone)
		writeLog(events, c.log)
	}()
	nodes := c.receiver.nodes
	go c.loop.run(func() monotime.Time { return c.engine.turn(nodes) })
	if c.throttles.meter != nil {
		c.workers.group.Go(c.throttles.run)
	}
	if c.layers.meter != nil {
		c.workers.group.Go(c.layers.run)
	}
	c.workers.group.Go(c.engine.runner.readExits)
	if cluster != nil {
		c.workers.group.Go(c.adopter.readCluster)
	}
	c.loop.post(nodes.tagger.begin)
	if !cfg.AwaitServices {
		c.loop.after(nodesPause, nodes.endPause)
	}
	return c, nil
}

// build makes the parts that belong to the loop.
func (c *Controller) build(cfg Config, cluster runtime.Cluster) {
	e := &engine{
		loop: c.loop, events: c.events, table: newTable(cfg.Node), wakes: newWakes(cfg.Wake), changed: newChangedSet(),
		pressures: newPressures(), alerts: alertBuckets{}, caller: cfg.Caller, held: map[v1alpha1.Key]int{},
		preparer: newPreparer(c.workers.ctx, cfg.Runtime, c.events, cfg.MaxConcurrentPulls),
		cluster:  cluster, began: time.Now(),
	}
	e.preparer.pulling = func(w *wanted, pull *status.Pull) { c.loop.post(func() { e.imagePulling(w, pull) }) }
	e.preparer.volumes = func(w *wanted, kept []string) { c.loop.post(func() { e.volumesFound(w, kept) }) }
	e.preparer.done = func(w *wanted, reason string) { c.loop.post(func() { e.imagePrepared(w, reason) }) }
	e.daemons = &daemons{
		loop: c.loop, events: c.events, peers: map[uint64]wire.Peer{},
		aloneChanged: func() { e.changed.addAll(e.table.services) },
	}
	if cluster != nil {
		e.prefetch = images.NewPlanner(imageHost{c.loop, c.workers, e}, images.Config{
			Cluster: cluster, Settle: cfg.ImageSettle, Retry: cfg.ImageRetry, Lazy: cfg.Lazy,
		})
	}
	e.publisher = newPublisher(c.loop, e.table, e.daemons, e.step)
	meter, _ := cfg.Runtime.(runtime.Meter)
	e.scaler = &autoscaler{
		loop: c.loop, workers: c.workers, table: e.table, meter: meter, log: cfg.Log, deliver: e.step,
		following: map[*service]bool{},
	}
	e.relief = &relief{loop: c.loop, table: e.table, cluster: cluster, deliver: e.step}
	e.freezer = &freezer{
		loop: c.loop, workers: c.workers, table: e.table, daemons: e.daemons, meter: meter, deliver: e.step,
		cluster: cluster, relief: e.relief,
	}
	e.planner = &planner{
		loop: c.loop, table: e.table, events: c.events, deliver: e.step, rolls: cluster != nil, onHistory: cfg.OnHistory,
	}
	nodes := &nodes{
		loop: c.loop, workers: c.workers, events: c.events, table: e.table, daemons: e.daemons, cluster: cluster,
		deliver: e.step,
		byName:  map[string]*node{}, newcomers: map[uint64]bool{}, gathering: cfg.AwaitServices,
		tagger: &tagger{key: cfg.Key, loop: c.loop, daemons: e.daemons, able: map[uint64]bool{}},
	}
	var blobs *images.Blobs
	if cluster != nil {
		blobs = images.NewBlobs(cfg.Key, e.prefetch, nodes.addr)
	}
	e.runner = &runner{
		runtime: cfg.Runtime, loop: c.loop, workers: c.workers, events: c.events, preparer: e.preparer, table: e.table,
		nodes: nodes, deliver: e.step, slots: make(chan struct{}, cfg.MaxConcurrentStarts), orphanGone: e.checkIdle,
		cluster: e.cluster != nil,
		laggards: &laggards{
			loop: c.loop, nodes: nodes, events: c.events, changed: e.changed, cluster: e.cluster != nil,
		},
	}
	c.throttles = &throttleWatch{
		loop: c.loop, workers: c.workers, table: e.table, events: c.events, changed: e.changed, meter: meter,
	}
	layers, _ := cfg.Runtime.(runtime.LayerMeter)
	c.layers = &layerWatch{
		loop: c.loop, workers: c.workers, table: e.table, events: c.events, changed: e.changed, runner: e.runner,
		log: cfg.Log, meter: layers,
	}
	c.engine, c.adopter = e, &adopter{engine: e}
	c.receiver = &receiver{
		engine: e, nodes: nodes,
		relay: &relay{loop: c.loop, table: e.table, daemons: e.daemons, due: map[*pod]bool{}},
		blobs: blobs,
		inspector: &inspector{
			loop: c.loop, daemons: e.daemons, table: e.table, patience: inspectPatience, fresh: inspectFresh,
		},
	}
}

// Shutdown ends the controller and all pods, each with its grace, and waits until they are gone. If ctx ends before
// that, it returns with pods left, and its error has their number.
func (c *Controller) Shutdown(ctx context.Context) error {
	c.catalog.close()
	c.engine.preparer.stop()
	idle := make(chan struct{})
	c.loop.call(func() { c.engine.shutdown(idle) })
	var err error
	select {
	case <-idle:
	case <-c.loop.done:
	case <-ctx.Done():
		left := 0
		c.loop.call(func() { left = c.engine.podsLeft() })
		err = fmt.Errorf("shutdown: %d pods are not gone yet: %w", left, ctx.Err())
	}
	c.end()
	return err
}

// Detach ends the controller and leaves pods running, for the next one to adopt. Starts in progress are cancelled.
func (c *Controller) Detach() {
	c.catalog.close()
	c.engine.preparer.stop()
	c.end()
}

// end stops all goroutines.
func (c *Controller) end() {
	c.ending.Do(func() {
		defer close(c.ended)
		c.loop.call(func() { c.loop.halted = true })
		c.workers.stop()
		if err := c.server.Close(); err != nil {
			c.log.Warn("the socket for daemons cannot be closed", "error", err)
		}
		close(c.loop.quit)
		<-c.loop.done
		c.events.close()
		<-c.logDone
	})
	<-c.ended
}

// Retire ends the controller's decisions, because another one will lead: from now on it starts, stops and refuses
// nothing. It keeps reporting to daemons what becomes of the pods that exist: which ones are leaving, listen or have
// ended. A pod that is being deleted would otherwise get new flows until the next leader is there. Starts in progress
// go on; the runtime must ensure that they change nothing. The list of nodes stays as it is: daemons that move to the
// next leader have not left.
//
// Call AwaitSuccessor and Detach after it.
func (c *Controller) Retire() {
	c.catalog.close()
	c.engine.preparer.stop()
	c.loop.call(func() { c.loop.retired = true })
	c.workers.cancelStops()
}

// AwaitSuccessor returns once a retired controller has no daemons: they move to the next leader as soon as it answers
// them. If ctx ends before that, its error says so.
func (c *Controller) AwaitSuccessor(ctx context.Context) error {
	deserted := make(chan struct{})
	c.loop.call(func() { c.engine.daemons.whenDeserted(func() { close(deserted) }) })
	select {
	case <-deserted:
		return nil
	case <-c.loop.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}
