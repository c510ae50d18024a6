// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
)

// A packet from outside cannot come from an address of the node itself, nor from a broadcast address. The kernel drops
// such packets, too (fib_validate_source), but long after the gate has seen them.

// Values of `own_addresses`.
const (
	ownHost      = uint32(gateOwnAddressOWN_HOST)
	ownBroadcast = uint32(gateOwnAddressOWN_BROADCAST)
)

// ownPause is how long the gate waits for further changes of addresses before it lists them. A node where kube-proxy
// uses IPVS has thousands, which come and go together.
const ownPause = 50 * time.Millisecond

// ownAddresses returns what `own_addresses` should hold for the addresses of a node's devices. Broadcast addresses are
// the ones for which the kernel makes routes (fib_add_ifaddr), unless some device has them as its own.
func ownAddresses(addrs []netlink.Addr) map[gateAddr]uint32 {
	out := map[gateAddr]uint32{}
	for _, a := range addrs {
		if b, ok := netip.AddrFromSlice(a.Broadcast.To4()); ok {
			out[toAddr(b)] = ownBroadcast
		}
		subnet := a.IPNet
		if a.Peer != nil {
			subnet = a.Peer
		}
		if b, ok := broadcastOf(subnet); ok {
			out[toAddr(b)] = ownBroadcast
		}
	}
	for _, a := range addrs {
		out[toAddr(addrOf(a.IPNet))] = ownHost
	}
	return out
}

// broadcastOf returns the broadcast address of a subnet, if it has one (RFC 3021).
func broadcastOf(subnet *net.IPNet) (netip.Addr, bool) {
	bits, _ := subnet.Mask.Size()
	if bits >= 31 {
		return netip.Addr{}, false
	}
	a := addrOf(subnet).As4()
	for i := range a {
		a[i] |= ^subnet.Mask[len(subnet.Mask)-4+i]
	}
	return netip.AddrFrom4(a), true
}

// syncOwnAddresses writes the addresses of the network namespace of the calling thread to the map. Open calls it first;
// after that, only the goroutine that follows devices does.
func (g *Gate) syncOwnAddresses() error {
	addrs, err := listAddresses()
	if err != nil {
		return err
	}
	if g.own == nil {
		if g.own, err = g.readOwnAddresses(); err != nil {
			return err
		}
	}
	wanted := ownAddresses(addrs)
	for a := range g.own {
		if _, ok := wanted[a]; ok {
			continue
		}
		if err := ignoreMissing(g.objs.OwnAddresses.Delete(a)); err != nil {
			return fmt.Errorf("removing the address %v from the gate's map: %w", fromAddr(a), err)
		}
		delete(g.own, a)
	}
	for a, kind := range wanted {
		if g.own[a] == kind {
			continue
		}
		if err := g.objs.OwnAddresses.Put(a, kind); err != nil {
			return fmt.Errorf("writing this node's address %v to the gate's map: %w", fromAddr(a), err)
		}
		g.own[a] = kind
	}
	return nil
}

// readOwnAddresses returns what an earlier process has written to the map.
func (g *Gate) readOwnAddresses() (map[gateAddr]uint32, error) {
	out := map[gateAddr]uint32{}
	var a gateAddr
	var kind uint32
	it := g.objs.OwnAddresses.Iterate()
	for it.Next(&a, &kind) {
		out[a] = kind
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("reading this node's addresses from the gate's map: %w", err)
	}
	return out, nil
}

// followOwnAddresses calls syncOwnAddresses while the gate runs, and logs errors.
func (g *Gate) followOwnAddresses() {
	if err := g.syncOwnAddresses(); err != nil {
		g.log.Error("forged SYNs from this node's own addresses may wake services", "error", err)
	}
}
