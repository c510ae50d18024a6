// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// WatchListen sends an EventListen when a socket in the network namespace with the given cookie
// (SO_NETNS_COOKIE) enters LISTEN on the pod's port.
func (g *Gate) WatchListen(cookie uint64, service netip.AddrPort, id uint64) error {
	index, ok := g.podIndex(service, id)
	if !ok {
		return fmt.Errorf("pod %d of %v: not known to the gate", id, service)
	}
	p := g.pods.at(index)
	value := uint64(p.Generation)<<32 | uint64(index)
	if err := g.objs.Listeners.Put(gateListenerKey{Netns: cookie, Port: uint32(ntohs(p.Port))}, value); err != nil {
		return fmt.Errorf("pod %d of %v: waiting for its LISTEN: %w", id, service, err)
	}
	return nil
}

// UnwatchListen ends WatchListen.
func (g *Gate) UnwatchListen(cookie uint64, port uint16) error {
	err := g.objs.Listeners.Delete(gateListenerKey{Netns: cookie, Port: uint32(port)})
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("no longer waiting for LISTEN on port %d: %w", port, err)
	}
	return nil
}

// FollowsListen tells whether the kernel's word on LISTEN is to be had; otherwise readiness must be probed.
func (g *Gate) FollowsListen() bool { return g.followsListen }
