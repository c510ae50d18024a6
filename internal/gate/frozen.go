// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"wangell.loutres.me/internal/base/monotime"
)

// Freeze says whether a pod is frozen, as set by SetFrozen.
type Freeze uint32

// The values of Freeze.
const (
	PodRuns   = Freeze(gatePodFreezePOD_RUNS)   // it is not frozen
	PodFrozen = Freeze(gatePodFreezePOD_FROZEN) // SetFrozen(true) was called, and nothing has needed the pod since
	PodThaws  = Freeze(gatePodFreezePOD_THAWS)  // like PodFrozen, and EventThaw was sent: the daemon must thaw it
)

// SetFrozen tells the gate that a pod is about to be frozen, or was thawed.
//
// While a pod on this node is frozen, all packets reach it as before. The first packet that needs its program sends
// EventThaw, once until SetFrozen(false): a SYN, the end of a handshake, payload or a FIN from a client, an ACK by
// which the client has received more or has room for more, and, with ThawDirect, any packet from another peer. Other
// bare ACKs, keepalives, window probes, RSTs and repeated data do not, because the pod's kernel handles them. New
// flows go to pods that run or for which EventThaw was sent, even if others have fewer flows or are local. With
// sessionAffinity, and in a SYN flood, the client's address still decides: the pod with the client's state is thawed,
// and a repeated choice gives the same pod.
//
// The order is: SetFrozen(true), PodCounters, freeze; later thaw, SetFrozen(false). SetFrozen returns once
// PodCounters.LastAsked includes every packet that was handled before it took effect. A daemon that finds LastAsked
// unchanged since it decided to freeze the pod misses nothing, because later packets send EventThaw. That takes a grace
// period of RCU, usually some 10 ms.
//
// For a pod that is frozen already, SetFrozen(true) changes nothing: a thaw that is due stays due. For a pod on another
// node, it only steers new flows away: the gate of the pod's home node sends the event.
func (g *Gate) SetFrozen(service netip.AddrPort, id uint64, frozen bool) error {
	if err := g.setFrozen(service, id, frozen); err != nil || !frozen {
		return err
	}
	if err := awaitPrograms(); err != nil {
		err = fmt.Errorf("pod %d of %v: waiting for the packets that are being handled: %w", id, service, err)
		return errors.Join(err, g.setFrozen(service, id, false))
	}
	return nil
}

// awaitPrograms returns once all programs that run now have ended. An update of a map of maps waits for them (kernel:
// maybe_wait_bpf_programs); membarrier(2) would not on machines with nohz_full CPUs.
func awaitPrograms() error {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	value, err := ebpf.NewMap(inner)
	if err != nil {
		return err
	}
	defer value.Close()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner})
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Put(uint32(0), value)
}

// setFrozen is SetFrozen without the grace period.
func (g *Gate) setFrozen(service netip.AddrPort, id uint64, frozen bool) error {
	g.podTable.mu.Lock()
	defer g.podTable.mu.Unlock()
	index, ok := g.podTable.services[service][id]
	if !ok {
		return errUnknownPod(service, id)
	}
	if IsFront(id) {
		return fmt.Errorf("the front of %v cannot be frozen", service)
	}
	word := frozenWord(g.pods.at(index))
	if frozen {
		atomic.CompareAndSwapUint32(word, uint32(PodRuns), uint32(PodFrozen))
	} else {
		atomic.StoreUint32(word, uint32(PodRuns))
	}
	return g.countFrozen()
}

// countFrozen updates the number of frozen pods on this node for the programs. The caller holds podTable.mu.
func (g *Gate) countFrozen() error {
	var n uint32
	for i := range g.podTable.pool.next {
		if p := g.pods.at(i); p.Node == 0 && freezeOf(p) != PodRuns {
			n++
		}
	}
	if err := g.objs.FrozenPods.Set(n); err != nil {
		return fmt.Errorf("setting the number of frozen pods: %w", err)
	}
	return nil
}

// PodFreeze returns whether a pod is frozen; false for an unknown pod.
func (g *Gate) PodFreeze(service netip.AddrPort, id uint64) (Freeze, bool) {
	index, ok := g.podTable.index(service, id)
	if !ok {
		return 0, false
	}
	return freezeOf(g.pods.at(index)), true
}

// dueThaws returns an EventThaw for each pod that must be thawed: an earlier reader may not have handled it.
func (g *Gate) dueThaws(now monotime.Time) []Event {
	var due []Event
	for _, index := range g.podTable.used() {
		p := g.pods.at(index)
		if freezeOf(p) != PodThaws || p.Node != 0 {
			continue
		}
		if service, ok := g.services.addr(p.Service); ok {
			due = append(due, Event{Kind: EventThaw, Service: service, Pod: p.Id, At: now})
		}
	}
	return due
}

func frozenWord(p *gatePod) *uint32 { return (*uint32)(&p.Frozen) }

func freezeOf(p *gatePod) Freeze { return Freeze(atomic.LoadUint32(frozenWord(p))) }
