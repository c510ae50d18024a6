// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync/atomic"
)

// FrontID is the ID of a service's front: a proxy on this node, with a network namespace of its own, that chooses a pod
// for each request. It is added and removed like a pod of that ID. No other pod has it.
const FrontID = math.MaxUint64

// frontSlot is the bit of a front in syn_backup.tried. Of the pods, only the 32nd of a service has the same.
const frontSlot = 31

// ServeFront makes the new connections of all clients but the front itself go to the front, as long as a pod of the
// service serves. The front's own connections to the service address go to pods. If the front refuses a connection, or
// does not listen any more, pods get the clients as if there were no front.
func (g *Gate) ServeFront(service netip.AddrPort) error {
	s, pod, err := g.servingIndices(service, FrontID)
	if err != nil {
		return fmt.Errorf("front: %w", err)
	}
	p := g.pods.at(pod)
	atomic.StoreUint32(&p.Slot, frontSlot)
	setPodState(p, gatePodStatePOD_SERVING)
	atomic.StoreUint32(&g.statuses.at(s).Front, pod+1)
	return nil
}

// DrainFront makes the front of a service take no new connections: pods get them. It does nothing if there is no front.
func (g *Gate) DrainFront(service netip.AddrPort) {
	s, pod, err := g.servingIndices(service, FrontID)
	if err != nil {
		return
	}
	atomic.StoreUint32(&g.statuses.at(s).Front, 0)
	setPodState(g.pods.at(pod), gatePodStatePOD_DRAINING)
}

// FrontAddr returns where the front of a service listens; the zero value if it has none.
func (g *Gate) FrontAddr(service netip.AddrPort) netip.AddrPort {
	pod, ok := g.podTable.index(service, FrontID)
	if !ok {
		return netip.AddrPort{}
	}
	p := g.pods.at(pod)
	return netip.AddrPortFrom(fromAddr(p.Addr), ntohs(p.Port))
}

// SetFronts sets the addresses of the fronts on all nodes of a cluster. What pods on this node send to them is use of
// these pods.
func (g *Gate) SetFronts(fronts []netip.Addr) error {
	wanted := map[uint32]bool{}
	for _, f := range fronts {
		if !f.Is4() {
			return fmt.Errorf("front address %v: not an IPv4 address", f)
		}
		wanted[toBE(f)] = true
	}
	var gone []uint32
	var addr, one uint32
	it := g.objs.Fronts.Iterate()
	for it.Next(&addr, &one) {
		if !wanted[addr] {
			gone = append(gone, addr)
		}
	}
	errs := []error{it.Err()}
	for _, f := range gone {
		errs = append(errs, ignoreMissing(g.objs.Fronts.Delete(f)))
	}
	for f := range wanted {
		errs = append(errs, g.objs.Fronts.Put(f, uint32(1)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("writing the fronts to the gate's map: %w", err)
	}
	return nil
}

// connectionsOfFront returns how many connections the front of a service has had, 0 if it has none. The caller holds
// podTable.mu.
func (g *Gate) connectionsOfFront(service netip.AddrPort) uint64 {
	pod, ok := g.podTable.services[service][FrontID]
	if !ok {
		return 0
	}
	return atomic.LoadUint64(&g.pods.at(pod).NewFlows)
}

// nameDevice notes the device of a pod or front on this node by its address.
func (g *Gate) nameDevice(index uint32) error {
	p := g.pods.at(index)
	device := gatePodDevice{Ifindex: p.Ifindex, Pod: index, Mac: p.Mac, HostMac: p.HostMac}
	if p.Id == FrontID {
		device.Front = 1
	}
	if err := g.objs.PodDevices.Put(p.Addr, device); err != nil {
		return fmt.Errorf("writing its address to the gate's map: %w", err)
	}
	return nil
}
