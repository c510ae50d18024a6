// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"sync"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/internal/wire"
)

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
	d.untold.end()
	for _, s := range d.allServices() {
		s.mu.Lock()
		for _, p := range s.pods {
			d.endWatch(p)
			p.endProbes()
		}
		s.front.endWatch()
		s.mu.Unlock()
	}
	d.tasks.Wait()
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

// receive handles a message of the controller. The message is acknowledged as handled when receive returns, so its
// effect must be complete by then.
func (d *daemon) receive(m wire.Message) {
	switch m := m.(type) {
	case *wire.Backends:
		if d.applyBackends(m) {
			d.settleFront()
		}
	case *wire.Refuse:
		n := d.gate.Refuse(m.Service)
		d.log.Info("wake failed: parked clients refused", "address", m.Service, "clients", n, "reason", m.Reason)
	case *wire.Freeze:
		d.applyFreeze(m)
	case *wire.Moved:
		d.expectMove(m)
	case *wire.TagKeys:
		<-d.started // d.client is set
		d.applyTagKeys(m)
	case *wire.Nodes:
		d.applyNodes(m)
	case *wire.Loads:
		d.applyLoads(m)
	case *wire.Inspect:
		d.inspect(m)
	case *wire.Images:
		if d.images != nil {
			d.images.receive(m)
		}
	case *wire.Repositories:
		if d.images != nil {
			d.images.receiveRepositories(m)
		}
	case *wire.Holders:
		if d.images != nil && d.images.mirror != nil {
			d.images.mirror.Receive(m)
		}
	default:
		d.log.Warn("unexpected message from the controller", "message", m.Type())
	}
}
