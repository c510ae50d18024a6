// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// alonePatience is how long the controller may be without any daemon before services count as not served.
const alonePatience = 5 * time.Second

// daemons are the connected daemons. They belong to the loop.
type daemons struct {
	loop   *loop
	events *hub
	server *wire.Server
	peers  map[uint64]wire.Peer // by session
	alone  bool                 // no daemon has been connected for alonePatience
	// first are the sessions that have not handled this controller's first list of nodes yet; nil before it is sent.
	first map[uint64]bool
	// deserted, unless nil, is called once when no daemon is connected.
	deserted func()
	// aloneChanged is called when alone or listed() has changed.
	aloneChanged func()
}

// broadcast queues a message for all daemons.
func (d *daemons) broadcast(m wire.Message) {
	for id := range d.peers {
		d.send(id, m)
	}
}

// send queues a message for one daemon.
func (d *daemons) send(peer uint64, m wire.Message) {
	if err := d.server.Send(peer, m); err != nil {
		d.notSent(peer, m, err)
	}
}

// disconnect ends the session of a daemon that cannot be reached. It gets everything when it joins again.
func (d *daemons) disconnect(p wire.Peer, why error) {
	d.events.report("", "", status.SeverityError, fmt.Sprintf("node %s: disconnected: %v", p.Node, why))
	d.server.Disconnect(p.ID)
}

// encode encodes the list of nodes, once for all daemons.
func (d *daemons) encode(list []*wire.Nodes) (batch []wire.Encoded) {
	for _, m := range list {
		e, err := wire.Encode(m)
		if err != nil {
			d.events.report("", "", status.SeverityError, fmt.Sprintf("the list of nodes cannot be sent: %v", err))
			continue
		}
		batch = append(batch, e)
	}
	return batch
}

// sendFirst sends the first list of nodes; lists is empty if nothing is divided among nodes.
func (d *daemons) sendFirst(lists map[uint64][]wire.Encoded) {
	d.first = map[uint64]bool{}
	for id, batch := range lists {
		if d.sendBatch(id, batch, func(error) { d.loop.post(func() { d.handledFirst(id) }) }) {
			d.first[id] = true
		}
	}
	if d.listed() {
		d.aloneChanged()
	}
}

// handledFirst notes that a daemon has handled the first list of nodes, or is gone.
func (d *daemons) handledFirst(id uint64) {
	delete(d.first, id)
	if d.listed() {
		d.aloneChanged()
	}
}

// listed reports whether all daemons that got the first list of nodes have handled it: service addresses are divided.
func (d *daemons) listed() bool { return d.first != nil && len(d.first) == 0 }

// sendBatch queues messages for one daemon. then is optional: see wire.Server.SendBatch. It is not called if sendBatch
// returns false, because nothing was queued.
func (d *daemons) sendBatch(peer uint64, batch []wire.Encoded, then func(error)) bool {
	if len(batch) == 0 {
		return false
	}
	err := d.server.SendBatch(peer, batch, then)
	if errors.Is(err, wire.ErrQueueFull) {
		d.disconnect(d.peers[peer], err)
	}
	return err == nil
}

// notSent reports a message that was not sent. A daemon that has left gets everything when it joins again.
func (d *daemons) notSent(peer uint64, m wire.Message, err error) {
	switch {
	case errors.Is(err, wire.ErrQueueFull):
		d.disconnect(d.peers[peer], err)
	case !errors.Is(err, wire.ErrPeerGone):
		text := fmt.Sprintf("node %s: message %v was not sent: %v", d.peers[peer].Node, m.Type(), err)
		d.events.report("", "", status.SeverityError, text)
	}
}

// setServices replaces the daemons' table of services.
func (d *daemons) setServices(all []wire.Service) {
	if err := d.server.SetServices(all); err != nil {
		d.events.report("", "", status.SeverityError, fmt.Sprintf("the daemons' table of services cannot be set: %v", err))
	}
}

// updateServices changes the daemons' table of services.
func (d *daemons) updateServices(upserts []wire.Service, removals []netip.AddrPort) {
	if len(upserts)+len(removals) == 0 {
		return
	}
	if err := d.server.UpdateServices(upserts, removals); err != nil {
		text := fmt.Sprintf("the daemons' table of services cannot be changed: %v", err)
		d.events.report("", "", status.SeverityError, text)
	}
}

// joined notes a daemon that has connected.
func (d *daemons) joined(p wire.Peer) {
	d.peers[p.ID] = p
	d.setAlone(false)
	d.events.emit(status.Event{Time: time.Now(), Kind: status.EventDaemon, Node: p.Node, Text: "connected"})
}

// left notes a daemon that has disconnected.
func (d *daemons) left(p wire.Peer) {
	delete(d.peers, p.ID)
	d.watchAlone()
	d.checkDeserted()
	d.events.emit(status.Event{Time: time.Now(), Kind: status.EventDaemon, Node: p.Node, Text: "disconnected"})
}

// whenDeserted calls f once no daemon is connected.
func (d *daemons) whenDeserted(f func()) {
	d.deserted = f
	d.checkDeserted()
}

func (d *daemons) checkDeserted() {
	if f := d.deserted; f != nil && len(d.peers) == 0 {
		d.deserted = nil
		f()
	}
}

// watchAlone sets alone if the lack of daemons lasts.
func (d *daemons) watchAlone() {
	if len(d.peers) == 0 && !d.loop.halted {
		d.loop.after(alonePatience, func() { d.setAlone(len(d.peers) == 0) })
	}
}

func (d *daemons) setAlone(alone bool) {
	if d.alone != alone {
		d.alone = alone
		d.aloneChanged()
	}
}

const (
	// tagPeriod is the time between two keys of tags. Each is valid for two such periods.
	tagPeriod = 24 * time.Hour
	// tagCheck is the interval of looks at the clock, which may be set.
	tagCheck = time.Hour
)

// tagKeysAt returns the keys of tags that are valid at a time, and when they change. They depend only on the wire's
// key and the time, so the next controller has the same. Of the two keys, the first is used in the first half of a
// period and the second in the other: so a daemon that learns of a change up to half a period late understands all
// others, and they understand it.
func tagKeysAt(key wire.Key, now time.Time) (*wire.TagKeys, time.Time) {
	const half = int64(tagPeriod / 2)
	n := now.UnixNano() / half
	k := &wire.TagKeys{First: uint64(n / 2), Second: n%2 == 1}
	for i := range k.Keys {
		derived := key.Derive(fmt.Sprintf("tag %d", k.First+uint64(i)))
		copy(k.Keys[i][:], derived[:])
	}
	return k, time.Unix(0, (n+1)*half)
}

// tagger gives daemons the keys of tags. It belongs to the loop.
type tagger struct {
	key     wire.Key
	loop    *loop
	daemons *daemons
	now     *wire.TagKeys   // nil before begin
	able    map[uint64]bool // sessions of daemons that know of tags
}

// begin sets the keys, now and whenever they change.
func (t *tagger) begin() {
	now := time.Now()
	keys, next := tagKeysAt(t.key, now)
	changed := t.now == nil || *t.now != *keys
	t.now = keys
	if changed {
		for id := range t.able {
			t.daemons.send(id, keys)
		}
	}
	t.loop.after(min(next.Sub(now), tagCheck), t.begin)
}

// ready reports whether a gate whose keys begin at a number can open the tags of others, now and after the next
// change.
func (t *tagger) ready(first uint64) bool {
	return t.now != nil && first != 0 && first+1 >= t.now.First && first <= t.now.First+1
}
