// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
)

// firstFrontID is the least ID of a front. No other pod has such an ID.
const firstFrontID = 0xffff_fffe << 32

// FrontIDs returns the IDs of the fronts of a node: proxies there, each with a network namespace of its own, that
// choose a pod for each request. One gets new clients, and the other one, its predecessor or successor, keeps the
// clients that it has. They are added and removed like pods with these IDs.
//
// Those of other nodes are added like pods there, and take only connections that exist: a segment of a connection to
// such a front, whose VIP has moved to this node, is sent on to it. node is the zero value on one machine.
func FrontIDs(node netip.Addr) [2]uint64 {
	low := uint64(math.MaxUint32)
	if node.Is4() {
		b := node.As4()
		low = uint64(binary.BigEndian.Uint32(b[:]))
	}
	return [2]uint64{firstFrontID | 1<<32 | low, firstFrontID | low}
}

// IsFront reports whether an ID belongs to a front of any node.
func IsFront(id uint64) bool { return id >= firstFrontID }

// Front is a front of a service.
type Front struct {
	ID      uint64
	Addr    netip.AddrPort // where it listens
	Serving bool           // it gets new connections
	Only    bool           // it serves by ServeOnlyFront
}

// frontSlot is the bit of a front in syn_backup.tried. It shares the bit with the 32nd pod of the service.
const frontSlot = 31

// ServeFront directs the new connections of all clients except fronts to a front, while a pod of the service serves.
// A front's own connections to the service address go to pods. If the front refuses a connection or stops listening,
// clients go to pods as if there were no front. The other front of the service keeps its connections and gets no new
// ones.
func (g *Gate) ServeFront(service netip.AddrPort, id uint64) error {
	s, pod, err := g.servingIndices(service, id)
	if err != nil {
		return fmt.Errorf("front: %w", err)
	}
	p := g.pods.at(pod)
	atomic.StoreUint32(&p.Slot, frontSlot)
	setPodState(p, gatePodStatePOD_SERVING)
	before := atomic.SwapUint32(&g.statuses.at(s).Front, pod+1)
	if before != 0 && before != pod+1 {
		setPodState(g.pods.at(before-1), gatePodStatePOD_DRAINING)
	}
	return nil
}

// ServeOnlyFront is like ServeFront for a service that has no pods of its own: the front gets all new connections,
// and the parked ones. It returns the number of released SYNs. While such a service has no front, it is cold.
func (g *Gate) ServeOnlyFront(service netip.AddrPort, id uint64) (int, error) {
	released, err := g.Serve(service, id)
	if err != nil {
		return 0, fmt.Errorf("front: %w", err)
	}
	for _, f := range g.Fronts(service) {
		if f.ID != id {
			g.DrainFront(service, f.ID)
		}
	}
	return released, nil
}

// DrainFront stops new connections to a front: pods get them. It does nothing if there is no such front.
func (g *Gate) DrainFront(service netip.AddrPort, id uint64) {
	s, pod, err := g.servingIndices(service, id)
	if err != nil {
		return
	}
	atomic.CompareAndSwapUint32(&g.statuses.at(s).Front, pod+1, 0)
	g.removeServing(s, pod) // if it was the only one
	setPodState(g.pods.at(pod), gatePodStatePOD_DRAINING)
}

// Fronts returns the fronts of a service on this node, at most two, in the order of FrontIDs.
func (g *Gate) Fronts(service netip.AddrPort) (fronts []Front) {
	s, known := g.services.index(service)
	if !known {
		return nil
	}
	for id, pod := range g.frontPods(service) {
		if p := g.pods.at(pod); p.Node == 0 {
			serving := podState(p) == gatePodStatePOD_SERVING
			fronts = append(fronts, Front{
				ID: id, Addr: netip.AddrPortFrom(fromAddr(p.Addr), ntohs(p.Port)), Serving: serving,
				Only: serving && atomic.LoadUint32(&g.statuses.at(s).Front) != pod+1,
			})
		}
	}
	slices.SortFunc(fronts, func(a, b Front) int { return cmp.Compare(b.ID, a.ID) })
	return fronts
}

// FrontsElsewhere returns the IDs of a service's fronts on other nodes, and how many connections each of them has
// through this node.
func (g *Gate) FrontsElsewhere(service netip.AddrPort) map[uint64]uint32 {
	open := map[uint64]uint32{}
	for id, pod := range g.frontPods(service) {
		if p := g.pods.at(pod); p.Node != 0 {
			open[id] = atomic.LoadUint32(&p.Open) + atomic.LoadUint32(&p.HalfOpen)
		}
	}
	return open
}

// frontPods returns the indices of a service's fronts on all nodes, by their IDs.
func (g *Gate) frontPods(service netip.AddrPort) map[uint64]uint32 {
	g.podTable.mu.Lock()
	defer g.podTable.mu.Unlock()
	fronts := map[uint64]uint32{}
	for id, pod := range g.podTable.services[service] {
		if IsFront(id) {
			fronts[id] = pod
		}
	}
	return fronts
}

// SetFronts sets the addresses of the fronts on all nodes of a cluster. Packets from pods on this node to them count
// as use of these pods.
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

// connectionsOfFronts returns how many connections the fronts of a service have had. The caller holds podTable.mu.
func (g *Gate) connectionsOfFronts(service netip.AddrPort) (n uint64) {
	for id, pod := range g.podTable.services[service] {
		if IsFront(id) {
			n += atomic.LoadUint64(&g.pods.at(pod).NewFlows)
		}
	}
	return n
}

// nameDevice writes the device of a pod or front on this node to the map, under its address.
func (g *Gate) nameDevice(index uint32) error {
	p := g.pods.at(index)
	device := gatePodDevice{Ifindex: p.Ifindex, Pod: index, Mac: p.Mac, HostMac: p.HostMac}
	if IsFront(p.Id) {
		device.Front = 1
		if err := g.objs.FrontDevices.Put(p.Ifindex, toBE(fromAddr(p.Addr))); err != nil {
			return fmt.Errorf("writing its device to the gate's map: %w", err)
		}
	}
	if err := g.objs.PodDevices.Put(p.Addr, device); err != nil {
		return fmt.Errorf("writing its address to the gate's map: %w", err)
	}
	return nil
}
