// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
)

// Node is another node, with which packets are exchanged.
type Node struct {
	Addr netip.Addr // IPv4
	// Tags is set if the node accepts tagged packets. Packets to it then get a tag (SetTagKeys).
	Tags bool
	// TagsAll is set if the node tags all its packets: untagged ones are then dropped. It requires Tags, and stays
	// until the node is removed or loses Tags.
	TagsAll bool
}

// flags returns the new value of a node's entry in the gate's map, given its present value.
func (n Node) flags(before uint32) uint32 {
	if !n.Tags {
		return uint32(gateNodeFlagNODE_KNOWN)
	}
	flags := uint32(gateNodeFlagNODE_KNOWN|gateNodeFlagNODE_TAGS) | before&uint32(gateNodeFlagNODE_TAGS_ALL)
	if n.TagsAll {
		flags |= uint32(gateNodeFlagNODE_TAGS_ALL)
	}
	return flags
}

// SetNodes sets the other nodes. Encapsulated packets from any other address are dropped and counted (unknown_node),
// and so are packets without a tag from nodes with TagsAll (untagged). A node whose address is not usable is left out,
// and named in the error.
func (g *Gate) SetNodes(nodes []Node) error {
	wanted := map[uint32]Node{}
	var errs []error
	for _, n := range nodes {
		if err := checkNode(n.Addr); err != nil {
			errs = append(errs, err)
			continue
		}
		if n.Addr != g.cfg.NodeAddr {
			wanted[toBE(n.Addr)] = n
		}
	}
	var gone []uint32
	var n, v uint32
	before := map[uint32]uint32{}
	it := g.objs.Nodes.Iterate()
	for it.Next(&n, &v) {
		if _, ok := wanted[n]; !ok {
			gone = append(gone, n)
		}
		before[n] = v
	}
	if err := it.Err(); err != nil {
		errs = append(errs, fmt.Errorf("reading the nodes from the gate's map: %w", err))
	}
	for _, n := range gone {
		if err := g.objs.Nodes.Delete(n); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("removing a node from the gate's map: %w", err))
		}
	}
	for addr, n := range wanted {
		if err := g.objs.Nodes.Put(addr, n.flags(before[addr])); err != nil {
			errs = append(errs, fmt.Errorf("writing the node %v to the gate's map: %w", n.Addr, err))
		}
	}
	return errors.Join(errs...)
}

// AddNode adds one node to the nodes of SetNodes, without tags. A node that is there already stays as it is.
func (g *Gate) AddNode(node netip.Addr) error {
	if err := checkNode(node); err != nil || node == g.cfg.NodeAddr {
		return err
	}
	err := g.objs.Nodes.Update(toBE(node), uint32(gateNodeFlagNODE_KNOWN), ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("writing the node %v to the gate's map: %w", node, err)
	}
	return nil
}

func checkNode(node netip.Addr) error {
	if !node.Is4() || node.IsUnspecified() {
		return fmt.Errorf("node address %v: not an IPv4 address", node)
	}
	return nil
}

// updateHomes writes the other nodes with pods of a service to the map, as many as fit. The caller holds podTable.mu.
func (g *Gate) updateHomes(service netip.AddrPort, index uint32) error {
	var h gateHomeNodeList
	for _, i := range g.podTable.services[service] {
		node := g.pods.at(i).Node
		if node != 0 && int(h.N) < len(h.Node) && !slices.Contains(h.Node[:h.N], node) {
			h.Node[h.N] = node
			h.N++
		}
	}
	var err error
	if h.N > 0 {
		err = g.objs.HomeNodes.Put(index, h)
	} else if err = g.objs.HomeNodes.Delete(index); errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("writing the home nodes of %v to the gate's map: %w", service, err)
	}
	return nil
}

// SetEdge records which node announces a VIP, so that clients' segments enter the cluster there. Replies of connections
// that entered by an earlier announcing node leave by this one from now on. The gate remembers the last four earlier
// nodes. It has no effect without Config.RepliesByEdge, on an address that is no VIP, or without a node.
func (g *Gate) SetEdge(vip, node netip.Addr) error {
	if !g.cfg.RepliesByEdge || !node.Is4() {
		return nil
	}
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.vips[vip] == 0 {
		return nil
	}
	var was gateVipEdge
	if err := ignoreMissing(g.objs.VipEdges.Lookup(toAddr(vip), &was)); err != nil {
		return fmt.Errorf("VIP %v: reading which node announces it: %w", vip, err)
	}
	is := movedEdge(was, toBE(node))
	if is == was {
		return nil
	}
	if err := g.objs.VipEdges.Put(toAddr(vip), is); err != nil {
		return fmt.Errorf("VIP %v: writing which node announces it: %w", vip, err)
	}
	return nil
}

// movedEdge returns a VIP's entry e, changed for a node that announces the VIP from now on.
func movedEdge(e gateVipEdge, node uint32) gateVipEdge {
	if e.Now == node {
		return e
	}
	before := slices.DeleteFunc(append([]uint32{e.Now}, e.Before[:]...), func(n uint32) bool {
		return n == node || n == 0
	})
	out := gateVipEdge{Now: node}
	copy(out.Before[:], before)
	return out
}

// TagKey is a key of the tags of encapsulated packets, the same on all nodes.
type TagKey [16]byte

// TagKeys are the two keys that tags may have at a time: the key with the number First, and the next one.
type TagKeys struct {
	First uint64
	Keys  [2]TagKey
	// Second says that packets of this node are tagged with the second key; otherwise with the first.
	Second bool
}

// tagSlots is the number of keys in the gate's map. A key's slot is its number modulo this.
const tagSlots = uint64(gateLimitTAG_SLOTS)

// SetTagKeys replaces the keys of tags. A packet whose tag matches neither key is dropped and counted (bad_tag). Keys
// outlive this process. Before the first call ever, no packet is tagged.
func (g *Gate) SetTagKeys(k TagKeys) error {
	var set gateTagKeySet
	if err := g.objs.TagKeys.Lookup(uint32(0), &set); err != nil {
		return fmt.Errorf("reading the keys of tags from the gate's map: %w", err)
	}
	// The programs may read at any time: a key is complete before it is valid, and valid before it is used.
	put := func() error {
		if err := g.objs.TagKeys.Put(uint32(0), set); err != nil {
			return fmt.Errorf("writing the keys of tags to the gate's map: %w", err)
		}
		return nil
	}
	var valid uint32
	for i, key := range k.Keys {
		slot := (k.First + uint64(i)) % tagSlots
		words := [2]uint64{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])}
		if set.Key[slot] != words {
			set.Key[slot] = words
			set.Valid &^= 1 << slot
		}
		valid |= 1 << slot
	}
	if err := put(); err != nil {
		return err
	}
	set.Valid = valid
	if err := put(); err != nil {
		return err
	}
	send := k.First
	if k.Second {
		send++
	}
	set.Send, set.First = 1+uint32(send%tagSlots), k.First
	return put()
}

// FirstTagKey returns the number of the first valid key of tags, which may be from an earlier daemon; 0 if there is
// none.
func (g *Gate) FirstTagKey() (uint64, error) {
	var set gateTagKeySet
	if err := g.objs.TagKeys.Lookup(uint32(0), &set); err != nil {
		return 0, fmt.Errorf("reading the keys of tags from the gate's map: %w", err)
	}
	return set.First, nil
}
