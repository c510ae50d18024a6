package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

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
