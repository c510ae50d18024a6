// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// WatchListen requests an EventListen whenever a socket in a network namespace enters LISTEN on the pod's port, and an
// EventDeaf whenever one leaves it, until the pod is removed. The namespace is given by its cookie (SO_NETNS_COOKIE).
func (g *Gate) WatchListen(cookie uint64, service netip.AddrPort, id uint64) error {
	index, ok := g.podTable.index(service, id)
	if !ok {
		return errUnknownPod(service, id)
	}
	p := g.pods.at(index)
	key := gateListenerKey{Netns: cookie, Port: uint32(ntohs(p.Port))}
	g.sockets.at(index).Netns = cookie
	if err := g.objs.Listeners.Put(key, listenerOf(p, index)); err != nil {
		return fmt.Errorf("pod %d of %v: requesting an event for its LISTEN: %w", id, service, err)
	}
	return nil
}

// listenerOf returns a pod's value in the map of listeners.
func listenerOf(p *gatePod, index uint32) uint64 { return uint64(p.Generation)<<32 | uint64(index) }

// unwatchListen cancels WatchListen, unless a later pod has the same namespace and port.
func (g *Gate) unwatchListen(index uint32) error {
	p, s := g.pods.at(index), g.sockets.at(index)
	key := gateListenerKey{Netns: s.Netns, Port: uint32(ntohs(p.Port))}
	*s = gatePodSocket{}
	var of uint64
	if key.Netns == 0 || g.objs.Listeners.Lookup(key, &of) != nil || of != listenerOf(p, index) {
		return nil
	}
	if err := g.objs.Listeners.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("canceling the event for LISTEN on port %d: %w", key.Port, err)
	}
	return nil
}

// nameNetns records the kernel's ID of the network namespace of a pod's device, with which the programs look for its
// listening sockets. Without an ID, as for a device in this namespace, they assume that the pod listens. The calling
// thread must be in the gate's network namespace.
func (g *Gate) nameNetns(index uint32, ifindex int) {
	if dev, err := netlink.LinkByIndex(ifindex); err == nil && dev.Attrs().NetNsID >= 0 {
		g.sockets.at(index).Nsid = uint32(dev.Attrs().NetNsID) + 1
	}
}
