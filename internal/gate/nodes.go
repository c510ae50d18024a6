// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
)

// SetNodes sets the IPv4 addresses of the other nodes. Encapsulated packets from any other address are dropped and
// counted (unknown_node).
func (g *Gate) SetNodes(nodes []netip.Addr) error {
	wanted := map[uint32]bool{}
	for _, n := range nodes {
		if err := checkNode(n); err != nil {
			return err
		}
		if n != g.cfg.NodeAddr {
			wanted[toBE(n)] = true
		}
	}
	var gone []uint32
	var n, v uint32
	it := g.objs.Nodes.Iterate()
	for it.Next(&n, &v) {
		if !wanted[n] {
			gone = append(gone, n)
		}
	}
	errs := []error{it.Err()}
	for _, n := range gone {
		if err := g.objs.Nodes.Delete(n); !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	for n := range wanted {
		errs = append(errs, g.objs.Nodes.Put(n, uint32(1)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("writing the nodes to the gate's map: %w", err)
	}
	return nil
}

// AddNode adds one node to those of SetNodes.
func (g *Gate) AddNode(node netip.Addr) error {
	if err := checkNode(node); err != nil || node == g.cfg.NodeAddr {
		return err
	}
	if err := g.objs.Nodes.Put(toBE(node), uint32(1)); err != nil {
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
