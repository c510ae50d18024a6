// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// setNodes gives the gate the nodes whose packets are accepted, and again when more of them have to tag their packets.
func (d *daemon) setNodes() {
	d.nodesMu.Lock()
	defer d.nodesMu.Unlock()
	nodes, wait := d.members.accepted(monotime.Now())
	if err := d.gate.SetNodes(nodes); err != nil {
		d.log.Error("cannot update the accepted nodes: packets of other nodes may be dropped", "error", err)
	}
	if d.later != nil {
		d.later.Stop()
	}
	if d.later = nil; wait > 0 && d.ctx.Err() == nil {
		d.later = time.AfterFunc(wait, func() {
			if d.ctx.Err() == nil {
				d.setNodes()
			}
		})
	}
}

// applyTagKeys gives the gate the keys of tags, and reports that it has them.
func (d *daemon) applyTagKeys(m *wire.TagKeys) {
	keys := gate.TagKeys{First: m.First, Second: m.Second}
	for i, k := range m.Keys {
		keys.Keys[i] = gate.TagKey(k)
	}
	if err := d.gate.SetTagKeys(keys); err != nil {
		d.log.Error("cannot use the keys of tags: packets from other nodes will be dropped", "error", err)
		return
	}
	if err := d.client.SetFirst(d.firstMessages(m.First)...); err != nil {
		d.log.Error("cannot describe this node to the next controller", "error", err)
	}
	d.send(&wire.TagReady{First: m.First})
}

// firstMessages are the messages that begin a session. firstKey is the number of the first key that the gate has.
func (d *daemon) firstMessages(firstKey uint64) []wire.Message {
	if !d.cfg.NodeAddr.IsValid() {
		return nil
	}
	return []wire.Message{&wire.TagReady{First: firstKey}, &wire.Node{Addr: d.cfg.NodeAddr}}
}
