// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"wangell.loutres.me/internal/monotime"
)

// MaxPodsPerService is how many pods of one service take new flows at once.
const MaxPodsPerService = uint32(len(gateServiceState{}.Pod))

// PodState is what the gate does with a pod.
type PodState uint32

// The states of a pod in the gate.
const (
	PodStarting = PodState(gatePodStatePOD_STARTING) // its replies are rewritten; it takes no flow yet
	PodServing  = PodState(gatePodStatePOD_SERVING)  // it takes new flows
	PodDraining = PodState(gatePodStatePOD_DRAINING) // it keeps its flows and takes no new one
)

// Pod is a pod as the gate needs it.
type Pod struct {
	ID      uint64         // the controller's name for it
	Service netip.AddrPort // service address whose copy it is
	Addr    netip.AddrPort // its own address and the port on which it listens
	// Node is the address of its home node; the zero value is this one. The rest is of pods on this node only.
	Node    netip.Addr
	Ifindex int // host end of its veth
	MAC     net.HardwareAddr
	HostMAC net.HardwareAddr
}

// PodCounters are a pod's counts since it is known.
type PodCounters struct {
	Open, HalfOpen    uint32 // flows at present
	NewFlows          uint64 // handshakes completed
	BytesIn, BytesOut uint64 // IP bytes, from clients and to clients
	PacketsIn         uint64
	PacketsOut        uint64
	LastPacket        monotime.Time // zero: none yet; exact to one tick of the kernel's clock
	FirstSYNACK       monotime.Time // zero: not yet
	FirstByte         monotime.Time // zero: not yet
}

// podTable keeps which pod has which index.
type podTable struct {
	mu         sync.Mutex
	indices    map[podName]uint32
	free       []uint32
	next       uint32
	generation uint32

	serving sync.Mutex // held by whoever changes which pods of a service take new flows
}

type podName struct {
	service netip.AddrPort
	id      uint64
}

// adopt learns from the maps what an earlier process put there.
func (t *podTable) adopt(g *Gate) {
	t.indices = map[podName]uint32{}
	// Above those of pods that are gone already, whose flows may still be in the table.
	t.generation = uint32(time.Now().Unix())
	for i := range g.pods.items {
		p := g.pods.at(uint32(i))
		t.generation = max(t.generation, p.Generation)
		if p.State == gatePodStatePOD_UNUSED {
			continue
		}
		t.indices[podName{fromServiceKey(p.Vip), p.Id}] = uint32(i)
		t.next = uint32(i) + 1
	}
	for i := range t.next {
		if g.pods.at(i).State == gatePodStatePOD_UNUSED {
			t.free = append(t.free, i)
		}
	}
}

func (t *podTable) used() []uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]uint32, 0, len(t.indices))
	for _, i := range t.indices {
		out = append(out, i)
	}
	return out
}

func (g *Gate) podIndex(service netip.AddrPort, id uint64) (uint32, bool) {
	g.podTable.mu.Lock()
	defer g.podTable.mu.Unlock()
	i, ok := g.podTable.indices[podName{service, id}]
	return i, ok
}

// AddPod makes a pod known, and attaches to its veth if it is on this node. It takes no flow before Serve. A pod
// that is known already (adopted) keeps its flows and counts. The calling thread must be in the gate's network
// namespace.
func (g *Gate) AddPod(p Pod) error {
	service, ok := g.index(p.Service)
	if !ok {
		return fmt.Errorf("pod %d: its service %v is not known to the gate", p.ID, p.Service)
	}
	if p.Node.IsValid() {
		if !p.Node.Is4() || g.cfg.EncapPort == 0 {
			return fmt.Errorf("pod %d of %v: on node %v: this gate sends nothing to other nodes", p.ID, p.Service, p.Node)
		}
		p.Ifindex, p.MAC, p.HostMAC = 0, nil, nil
	}
	if _, known := g.podIndex(p.Service, p.ID); known {
		return nil
	}
	t := &g.podTable
	t.mu.Lock()
	defer t.mu.Unlock()
	var index uint32
	switch n := len(t.free); {
	case n > 0:
		index = t.free[n-1]
		t.free = t.free[:n-1]
	case t.next < g.cfg.Sizes.Pods:
		index = t.next
		t.next++
	default:
		return fmt.Errorf("pod %d of %v: the gate has room for %d pods", p.ID, p.Service, g.cfg.Sizes.Pods)
	}
	if t.generation++; t.generation == 0 {
		t.generation = 1
	}
	*g.pods.at(index) = gatePod{
		Vip: toServiceKey(p.Service), Addr: toAddr(p.Addr.Addr()), Port: htons(p.Addr.Port()),
		State: gatePodStatePOD_STARTING, Service: service, Generation: t.generation, Ifindex: uint32(p.Ifindex),
		Mac: hardwareAddr(p.MAC), HostMac: hardwareAddr(p.HostMAC), Id: p.ID, Node: nodeBE(p.Node),
	}
	if err := g.tellPod(p, index); err != nil {
		*g.pods.at(index) = gatePod{}
		t.free = append(t.free, index)
		return fmt.Errorf("pod %d of %v: %w", p.ID, p.Service, errors.Join(err, g.untellPod(p.Service, p.ID, uint32(p.Ifindex), htons(p.Addr.Port()))))
	}
	t.indices[podName{p.Service, p.ID}] = index
	if err := g.tellHomes(p.Service, service); err != nil {
		g.log.Error("connections to a pod may not outlive a move of their service address", "service", p.Service, "pod", p.ID, "error", err)
	}
	return nil
}

// tellPod makes all but the array of pods know a pod, and attaches to its device.
func (g *Gate) tellPod(p Pod, index uint32) error {
	zero := make([]gateTraffic, ebpf.MustPossibleCPU())
	if err := g.objs.PodTraffic.Put(index, zero); err != nil {
		return fmt.Errorf("clearing its counters: %w", err)
	}
	if err := g.objs.PodNames.Put(gatePodName{Id: p.ID, Vip: toServiceKey(p.Service)}, index); err != nil {
		return fmt.Errorf("telling the gate its name: %w", err)
	}
	if p.Node.IsValid() {
		return nil
	}
	if err := g.objs.PodPorts.Put(gatePodPort{Ifindex: uint32(p.Ifindex), Port: htons(p.Addr.Port())}, index); err != nil {
		return fmt.Errorf("telling the gate its port: %w", err)
	}
	return g.attachPod(p.Ifindex)
}

// untellPod is the reverse of tellPod; port is in network byte order. What is not there is no error.
func (g *Gate) untellPod(service netip.AddrPort, id uint64, ifindex uint32, port uint16) error {
	err := g.objs.PodNames.Delete(gatePodName{Id: id, Vip: toServiceKey(service)})
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	if ifindex == 0 {
		return err
	}
	if e := g.objs.PodPorts.Delete(gatePodPort{Ifindex: ifindex, Port: port}); !errors.Is(e, ebpf.ErrKeyNotExist) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, g.detachPod(int(ifindex)))
}

// RemovePod forgets a pod. Its flows are not found any more; the gate answers what still comes with RST.
func (g *Gate) RemovePod(service netip.AddrPort, id uint64) error {
	index, ok := g.podIndex(service, id)
	if !ok {
		return nil
	}
	if s, ok := g.index(service); ok {
		g.takeOut(s, index)
	}
	t := &g.podTable
	t.mu.Lock()
	defer t.mu.Unlock()
	p := g.pods.at(index)
	err := g.untellPod(service, id, p.Ifindex, p.Port)
	// Generation 0 is no flow's, and whoever gets the index next has another: flows of this pod are nobody's.
	*p = gatePod{}
	delete(t.indices, podName{service, id})
	t.free = append(t.free, index)
	if s, ok := g.index(service); ok {
		err = errors.Join(err, g.tellHomes(service, s))
	}
	if err != nil {
		return fmt.Errorf("pod %d of %v: removing it from the gate: %w", id, service, err)
	}
	return nil
}

// takeOut removes a pod from those that take new flows, and makes the service cold if it was the last.
func (g *Gate) takeOut(service, index uint32) {
	g.podTable.serving.Lock()
	defer g.podTable.serving.Unlock()
	st := g.states.at(service)
	n := atomic.LoadUint32(&st.Pods)
	for i := range n {
		if atomic.LoadUint32(&st.Pod[i]) != index {
			continue
		}
		if n == 1 {
			g.setPhase(service, gatePhasePHASE_COLD)
		}
		atomic.StoreUint32(&st.Pod[i], atomic.LoadUint32(&st.Pod[n-1]))
		atomic.StoreUint32(&st.Pods, n-1)
		if err := g.hashPods(service); err != nil {
			g.log.Error("a pod may still be chosen by its clients' addresses", "error", err)
		}
		return
	}
}

// Serve lets a pod take new flows, makes its service warm and releases what is parked there. It returns
// how many SYNs were released.
func (g *Gate) Serve(service netip.AddrPort, id uint64) (int, error) {
	s, _, err := g.letServe(service, id)
	if err != nil {
		return 0, err
	}
	return g.release(s)
}

// ServeShare is Serve for a pod that others will follow: it gets so many of the SYNs that are parked, those that came
// first, and the rest stays parked for the others, or until Release.
func (g *Gate) ServeShare(service netip.AddrPort, id uint64, share uint32) (int, error) {
	s, index, err := g.letServe(service, id)
	if err != nil {
		return 0, err
	}
	return g.releaseShare(s, index, share)
}

// Release releases what is parked at a warm service, to whatever pods serve. It returns how many SYNs were released.
func (g *Gate) Release(service netip.AddrPort) (int, error) {
	s, ok := g.index(service)
	if !ok || g.phase(s) != gatePhasePHASE_WARM {
		return 0, nil
	}
	return g.release(s)
}

// letServe lets a pod take new flows, and makes its service warm. It returns the indices of both.
func (g *Gate) letServe(service netip.AddrPort, id uint64) (s, pod uint32, err error) {
	pod, ok := g.podIndex(service, id)
	s, known := g.index(service)
	if !ok || !known {
		return 0, 0, fmt.Errorf("pod %d of %v: not known to the gate", id, service)
	}
	if !g.putIn(s, pod) {
		return 0, 0, fmt.Errorf("service %v: the gate balances over %d pods at most", service, MaxPodsPerService)
	}
	return s, pod, nil
}

// putIn adds a pod to those that take new flows, and makes its service warm; false if they are too many.
func (g *Gate) putIn(service, index uint32) bool {
	g.podTable.serving.Lock()
	defer g.podTable.serving.Unlock()
	st := g.states.at(service)
	n := atomic.LoadUint32(&st.Pods)
	there := false
	for i := range n {
		there = there || atomic.LoadUint32(&st.Pod[i]) == index
	}
	if !there && n >= MaxPodsPerService {
		return false
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&g.pods.at(index).State)), uint32(gatePodStatePOD_SERVING))
	if !there {
		atomic.StoreUint32(&g.pods.at(index).Slot, g.freeSlot(st))
		atomic.StoreUint32(&st.Pod[n], index)
		atomic.StoreUint32(&st.Pods, n+1)
		if err := g.hashPods(service); err != nil {
			g.log.Error("clients' addresses do not choose a pod yet", "error", err)
		}
	}
	g.setPhase(service, gatePhasePHASE_WARM)
	return true
}

// Drain gives a pod no new flow. If it was its service's last, SYNs are parked from now on, and the first
// one asks for a wake.
func (g *Gate) Drain(service netip.AddrPort, id uint64) error {
	index, ok := g.podIndex(service, id)
	s, known := g.index(service)
	if !ok || !known {
		return fmt.Errorf("pod %d of %v: not known to the gate", id, service)
	}
	g.takeOut(s, index)
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&g.pods.at(index).State)), uint32(gatePodStatePOD_DRAINING))
	return nil
}

// PodState returns a pod's state; false if the gate does not know it.
func (g *Gate) PodState(service netip.AddrPort, id uint64) (PodState, bool) {
	index, ok := g.podIndex(service, id)
	if !ok {
		return 0, false
	}
	return PodState(atomic.LoadUint32((*uint32)(unsafe.Pointer(&g.pods.at(index).State)))), true
}

// PodIDs returns the pods of a service that the gate knows.
func (g *Gate) PodIDs(service netip.AddrPort) []uint64 {
	g.podTable.mu.Lock()
	defer g.podTable.mu.Unlock()
	var out []uint64
	for n := range g.podTable.indices {
		if n.service == service {
			out = append(out, n.id)
		}
	}
	return out
}

// PodCounters returns a pod's counts.
func (g *Gate) PodCounters(service netip.AddrPort, id uint64) (PodCounters, error) {
	index, ok := g.podIndex(service, id)
	if !ok {
		return PodCounters{}, fmt.Errorf("pod %d of %v: not known to the gate", id, service)
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
	}
	return c, nil
}
