// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
)

// Node is another node, with which packets are exchanged.
type Node struct {
	Addr netip.Addr // IPv4
	// Tags is set if the node accepts tagged packets: those sent to it then get a tag (SetTagKeys).
	Tags bool
	// TagsAll is set if all packets from the node are tagged, so that others are dropped. It requires Tags, and stays
	// until the node is removed or loses Tags.
	TagsAll bool
}

// flags returns the value of a node's entry in the gate's map, which has the value before.
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
// and so are packets without a tag from nodes with TagsAll (untagged).
func (g *Gate) SetNodes(nodes []Node) error {
	wanted := map[uint32]Node{}
	for _, n := range nodes {
		if err := checkNode(n.Addr); err != nil {
			return err
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
	errs := []error{it.Err()}
	for _, n := range gone {
		if err := g.objs.Nodes.Delete(n); !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	for addr, n := range wanted {
		errs = append(errs, g.objs.Nodes.Put(addr, n.flags(before[addr])))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("writing the nodes to the gate's map: %w", err)
	}
	return nil
}

// AddNode adds one node to those of SetNodes, without tags unless it is there already.
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
