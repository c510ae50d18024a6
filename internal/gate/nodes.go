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

// nodeBE is an IPv4 address in network byte order as it lies in memory; 0 for the zero value.
func nodeBE(a netip.Addr) uint32 {
	if !a.Is4() {
		return 0
	}
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

// tellHomes tells the programs which other nodes have pods of a service: at most as many as are asked for a flow.
// podTable.mu is held.
func (g *Gate) tellHomes(service netip.AddrPort, index uint32) error {
	var h gateHomeNodes
	for name, i := range g.podTable.indices {
		node := g.pods.at(i).Node
		if name.service == service && node != 0 && int(h.N) < len(h.Node) && !slices.Contains(h.Node[:h.N], node) {
			h.Node[h.N] = node
			h.N++
		}
	}
	var err error
	if h.N > 0 {
		err = g.objs.Homes.Put(index, h)
	} else if err = g.objs.Homes.Delete(index); errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("telling the gate the home nodes of %v: %w", service, err)
	}
	return nil
}

// AddNode is SetNodes for one more node.
func (g *Gate) AddNode(node netip.Addr) error {
	if !node.Is4() || node.IsUnspecified() {
		return fmt.Errorf("node address %v: not an IPv4 address", node)
	}
	if node == g.cfg.NodeAddr {
		return nil
	}
	if err := g.objs.Nodes.Put(nodeBE(node), uint32(1)); err != nil {
		return fmt.Errorf("telling the gate a node: %w", err)
	}
	return nil
}

// SetNodes says from which addresses encapsulated packets are taken: those of the other nodes (IPv4). Others' are
// dropped and counted (unknown_node).
func (g *Gate) SetNodes(nodes []netip.Addr) error {
	wanted := map[uint32]bool{}
	for _, n := range nodes {
		if !n.Is4() || n.IsUnspecified() {
			return fmt.Errorf("node address %v: not an IPv4 address", n)
		}
		if n != g.cfg.NodeAddr {
			wanted[nodeBE(n)] = true
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
		return fmt.Errorf("telling the gate the nodes: %w", err)
	}
	return nil
}
