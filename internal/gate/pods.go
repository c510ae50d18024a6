// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"wangell.loutres.me/internal/base/monotime"
)

// PodState decides what the gate does with a pod.
type PodState uint32

// The states of a pod in the gate.
const (
	PodStarting = PodState(gatePodStatePOD_STARTING) // its replies are translated; it takes no flows yet
	PodServing  = PodState(gatePodStatePOD_SERVING)  // it takes new flows
	PodDraining = PodState(gatePodStatePOD_DRAINING) // it keeps its flows and takes no new ones
	PodDeaf     = PodState(gatePodStatePOD_DEAF)     // it has stopped listening: like PodDraining; see EventDeaf
)

// Pod describes a pod to the gate.
type Pod struct {
	ID      uint64         // the controller's ID for it
	Service netip.AddrPort // its service address
	Addr    netip.AddrPort // its own address, and the port on which it listens
	Node    netip.Addr     // address of its home node; the zero value is this node

	// For pods on this node only.
	Ifindex int              // host end of its veth
	MAC     net.HardwareAddr // of the pod's end
	HostMAC net.HardwareAddr // of the host end
}

// PodCounters are a pod's counts since it was added.
type PodCounters struct {
	Open, HalfOpen        uint32 // flows at present
	NewFlows              uint64 // handshakes completed
	BytesIn, BytesOut     uint64 // IP bytes from and to clients
	PacketsIn, PacketsOut uint64
	// LastPacket is when a genuine segment of an established flow passed last; zero: none yet. It is precise to one
	// tick of the kernel's clock. Bare ACKs of the pod, and segments that do not fit their flow, do not count.
	LastPacket monotime.Time
	// LastAsked is when a packet last needed the pod's program, in the sense of SetFrozen, or the program sent
	// something to a client; zero: never. It is as precise as LastPacket. Any sender counts: a SYN is enough.
	LastAsked   monotime.Time
	FirstSYNACK monotime.Time // zero: none yet
	FirstByte   monotime.Time // zero: none yet
}

// Add adds the counts of another pod, or of the same one at another service address. The times become the later ones;
// FirstSYNACK and FirstByte stay.
func (c *PodCounters) Add(o PodCounters) {
	c.Open += o.Open
	c.HalfOpen += o.HalfOpen
	c.NewFlows += o.NewFlows
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
	c.PacketsIn += o.PacketsIn
	c.PacketsOut += o.PacketsOut
	c.LastPacket, c.LastAsked = max(c.LastPacket, o.LastPacket), max(c.LastAsked, o.LastAsked)
}

// AddPod adds a pod, and attaches to its veth if it is on this node. It takes no flows before Serve. A known pod, such
// as an adopted one, keeps its flows and counts. The calling thread must be in the gate's network namespace.
func (g *Gate) AddPod(p Pod) error {
	service, ok := g.services.index(p.Service)
	if !ok {
		return fmt.Errorf("pod %d: its service %v is not known to the gate", p.ID, p.Service)
	}
	if p.Node.IsValid() {
		if !p.Node.Is4() || g.cfg.EncapPort == 0 {
			return fmt.Errorf("pod %d of %v: on node %v: this gate does not send packets to other nodes",
				p.ID, p.Service, p.Node)
		}
		p.Ifindex, p.MAC, p.HostMAC = 0, nil, nil
	}
	t := &g.podTable
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.services[p.Service][p.ID]; known {
		return nil
	}
	index, ok := t.pool.acquire(g.cfg.Sizes.Pods)
	if !ok {
		return fmt.Errorf("pod %d of %v: the gate has room for %d pods: raise --pods", p.ID, p.Service, g.cfg.Sizes.Pods)
	}
	if t.generation++; t.generation == 0 {
		t.generation = 1
	}
	*g.pods.at(index) = gatePod{
		Vip: toServiceKey(p.Service), Addr: toAddr(p.Addr.Addr()), Port: htons(p.Addr.Port()),
		State: gatePodStatePOD_STARTING, Service: service, Generation: t.generation, Ifindex: uint32(p.Ifindex),
		Mac: hardwareAddr(p.MAC), HostMac: hardwareAddr(p.HostMAC), Id: p.ID, Node: toBE(p.Node),
	}
	if err := g.linkPod(p, index); err != nil {
		undo := g.unlinkPod([]netip.AddrPort{p.Service}, index)
		*g.pods.at(index) = gatePod{}
		t.pool.put(index)
		return fmt.Errorf("pod %d of %v: %w", p.ID, p.Service, errors.Join(err, undo))
	}
	t.add(p.Service, p.ID, index)
	if err := g.updateHomes(p.Service, service); err != nil {
		g.log.Error("connections to a pod may break when their service address moves",
			"service", p.Service, "pod", p.ID, "error", err)
	}
	return nil
}

// linkPod adds a pod to all maps except the map of pods, and attaches to its device.
func (g *Gate) linkPod(p Pod, index uint32) error {
	*g.sockets.at(index) = gatePodSocket{}
	zero := make([]gateTraffic, ebpf.MustPossibleCPU())
	if err := g.objs.PodTraffic.Put(index, zero); err != nil {
		return fmt.Errorf("clearing its counters: %w", err)
	}
	if err := g.objs.PodNames.Put(gatePodName{Id: p.ID, Vip: toServiceKey(p.Service)}, index); err != nil {
		return fmt.Errorf("writing its name to the gate's map: %w", err)
	}
	if p.Node.IsValid() {
		return nil
	}
	if err := g.objs.PodPorts.Put(gatePodPort{Ifindex: uint32(p.Ifindex), Port: htons(p.Addr.Port())}, index); err != nil {
		return fmt.Errorf("writing its port to the gate's map: %w", err)
	}
	t := &g.podTable
	if t.addDevice(uint32(p.Ifindex), index); t.devices[uint32(p.Ifindex)][0] == index {
		if err := g.nameDevice(index); err != nil {
			return err
		}
	}
	g.nameNetns(index, p.Ifindex)
	return g.attachPod(p.Ifindex)
}

// unlinkPod reverses linkPod, as far as it got, and removes the pod's names at all these addresses.
func (g *Gate) unlinkPod(at []netip.AddrPort, index uint32) error {
	var err error
	p := g.pods.at(index)
	for _, a := range at {
		err = errors.Join(err, ignoreMissing(g.objs.PodNames.Delete(gatePodName{Id: p.Id, Vip: toServiceKey(a)})))
	}
	if p.Ifindex == 0 {
		return err
	}
	err = errors.Join(err, ignoreMissing(g.objs.PodPorts.Delete(gatePodPort{Ifindex: p.Ifindex, Port: p.Port})))
	g.podTable.removeDevice(p.Ifindex, index)
	var named gatePodDevice // another pod may have the address by now
	ours := g.objs.PodDevices.Lookup(p.Addr, &named) == nil && named.Ifindex == p.Ifindex
	if others := g.podTable.devices[p.Ifindex]; len(others) > 0 {
		if ours && named.Pod == index {
			err = errors.Join(err, g.nameDevice(others[0]))
		}
		return err
	}
	if ours {
		err = errors.Join(err, ignoreMissing(g.objs.PodDevices.Delete(p.Addr)))
	}
	if IsFront(p.Id) {
		err = errors.Join(err, ignoreMissing(g.objs.FrontDevices.Delete(p.Ifindex)))
	}
	return errors.Join(err, g.detachPod(int(p.Ifindex)))
}

// RemovePod removes a pod. Its flows are forgotten, and further segments of them are answered with a RST.
func (g *Gate) RemovePod(service netip.AddrPort, id uint64) error {
	index, ok := g.podTable.index(service, id)
	if !ok {
		return nil
	}
	s, known := g.services.index(service)
	names := []netip.AddrPort{service}
	if known && IsFront(id) {
		g.DrainFront(service, id)
	} else if known {
		g.removeServing(s, index)
	}
	if known {
		names = append(names, g.services.allLeftBy(s)...)
	}
	t := &g.podTable
	t.mu.Lock()
	defer t.mu.Unlock()
	p := g.pods.at(index)
	err := errors.Join(g.unwatchListen(index), g.unlinkPod(names, index))
	used, frozen := atomic.LoadUint64(&p.NewFlows) > 0, freezeOf(p) != PodRuns
	// Generation 0 matches no flow, and the next pod with this index has another generation.
	*p = gatePod{}
	if frozen {
		err = errors.Join(err, g.countFrozen())
	}
	t.remove(service, id)
	t.pool.put(index)
	if known {
		err = errors.Join(err, g.updateHomes(service, s))
		if !IsFront(id) {
			g.judgeWake(s, used, t.withoutFronts(service) == 0, g.connectionsOfFronts(service))
		}
	}
	if err != nil {
		return fmt.Errorf("pod %d of %v: removing it from the gate: %w", id, service, err)
	}
	return nil
}

// PodState returns a pod's state; false for an unknown pod.
func (g *Gate) PodState(service netip.AddrPort, id uint64) (PodState, bool) {
	index, ok := g.podTable.index(service, id)
	if !ok {
		return 0, false
	}
	return PodState(podState(g.pods.at(index))), true
}

// PodIDs returns the IDs of a service's pods.
func (g *Gate) PodIDs(service netip.AddrPort) []uint64 {
	g.podTable.mu.Lock()
	defer g.podTable.mu.Unlock()
	return slices.Collect(maps.Keys(g.podTable.services[service]))
}

// PodCounters returns a pod's counts.
func (g *Gate) PodCounters(service netip.AddrPort, id uint64) (PodCounters, error) {
	index, ok := g.podTable.index(service, id)
	if !ok {
		return PodCounters{}, errUnknownPod(service, id)
	}
	var cpus []gateTraffic
	if err := g.objs.PodTraffic.Lookup(index, &cpus); err != nil {
		return PodCounters{}, fmt.Errorf("pod %d of %v: reading its counters: %w", id, service, err)
	}
	p := g.pods.at(index)
	c := PodCounters{
		Open:        atomic.LoadUint32(&p.Open),
		HalfOpen:    atomic.LoadUint32(&p.HalfOpen),
		NewFlows:    atomic.LoadUint64(&p.NewFlows),
		FirstSYNACK: monotime.Time(atomic.LoadUint64(&p.FirstSynack)),
		FirstByte:   monotime.Time(atomic.LoadUint64(&p.FirstByte)),
	}
	for _, t := range cpus {
		c.BytesIn += t.Bytes[0]
		c.BytesOut += t.Bytes[1]
		c.PacketsIn += t.Packets[0]
		c.PacketsOut += t.Packets[1]
		c.LastPacket = max(c.LastPacket, monotime.Time(t.Last))
		c.LastAsked = max(c.LastAsked, monotime.Time(t.Asked))
	}
	return c, nil
}

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
// listening sockets. Without an ID, such as for a device in this namespace, they assume that the pod listens. The
// calling thread must be in the gate's network namespace.
func (g *Gate) nameNetns(index uint32, ifindex int) {
	if dev, err := netlink.LinkByIndex(ifindex); err == nil && dev.Attrs().NetNsID >= 0 {
		g.sockets.at(index).Nsid = uint32(dev.Attrs().NetNsID) + 1
	}
}
