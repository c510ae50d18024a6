// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// WatchListen requests an EventListen when a socket in a network namespace enters LISTEN on the pod's port. The
// namespace is given by its cookie (SO_NETNS_COOKIE).
func (g *Gate) WatchListen(cookie uint64, service netip.AddrPort, id uint64) error {
	index, ok := g.podTable.index(service, id)
	if !ok {
		return errUnknownPod(service, id)
	}
	p := g.pods.at(index)
	key := gateListenerKey{Netns: cookie, Port: uint32(ntohs(p.Port))}
	if err := g.objs.Listeners.Put(key, uint64(p.Generation)<<32|uint64(index)); err != nil {
		return fmt.Errorf("pod %d of %v: requesting an event for its LISTEN: %w", id, service, err)
	}
	return nil
}

// UnwatchListen cancels WatchListen.
func (g *Gate) UnwatchListen(cookie uint64, port uint16) error {
	err := g.objs.Listeners.Delete(gateListenerKey{Netns: cookie, Port: uint32(port)})
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("canceling the event for LISTEN on port %d: %w", port, err)
	}
	return nil
}
