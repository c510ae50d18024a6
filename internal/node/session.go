// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

// lostAfter is how long the controller may be away before a warning: restarts and changes of leader take a moment.
const lostAfter = 2 * time.Second

// connected runs at the start of a session. The controller may be another one, whose generations start over.
func (d *daemon) connected() {
	d.mu.Lock()
	if d.lost != nil {
		d.lost.Stop()
	}
	d.sessionStart = monotime.Now()
	d.mu.Unlock()
	for _, s := range d.allServices() {
		s.mu.Lock()
		s.generation, s.freezeSeq = 0, 0
		s.answers.sendAgain()
		for _, p := range s.pods {
			p.answers.sendAgain()
			// Report every pod again, so that the controller can recognise pods that are not its own.
			p.lastReported, p.load, p.state = wire.PodStats{}, reportedLoad{}, 0
		}
		s.mu.Unlock()
	}
	d.members.beginSession()
	d.reports.sendAll(d.send)
	d.alerts.sendAll(d.send)
	if d.images != nil {
		d.images.beginSession(d.send)
	}
	notify(d.maintenance)
}

// disconnected runs at the end of a session.
func (d *daemon) disconnected() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lost = time.AfterFunc(lostAfter, func() {
		if d.ctx.Err() == nil {
			d.log.Warn("no connection to the controller: traffic continues, but sleeping services cannot wake " +
				"until it is back")
		}
	})
}

// moved changes the controller's address.
func (d *daemon) moved(addr string) {
	if err := d.client.SetServer(addr); err != nil {
		d.log.Error("cannot use the controller's new address", "error", err)
	}
}

// firstMessages are the messages that begin a session. firstKey is the number of the first key that the gate has.
func (d *daemon) firstMessages(firstKey uint64) []wire.Message {
	if !d.cfg.NodeAddr.IsValid() {
		return nil
	}
	return []wire.Message{&wire.TagReady{First: firstKey}, &wire.Node{Addr: d.cfg.NodeAddr}}
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
