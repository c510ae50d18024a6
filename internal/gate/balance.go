// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"wangell.loutres.me/internal/base/monotime"
)

// MaxPodsPerService is the maximum number of pods that take a service's new flows.
const MaxPodsPerService = uint32(gateLimitMAX_PODS_PER_SERVICE)

// errTooManyPods says that a service has MaxPodsPerService serving pods.
var errTooManyPods = fmt.Errorf("the gate balances over %d pods at most", MaxPodsPerService)

// addServing lets a pod take its service's new flows, and makes the service warm.
func (g *Gate) addServing(service, pod uint32) error {
	g.podTable.serving.Lock()
	defer g.podTable.serving.Unlock()
	st := g.statuses.at(service)
	n := atomic.LoadUint32(&st.Pods)
	there := false
	for i := range n {
		there = there || atomic.LoadUint32(&st.Pod[i]) == pod
	}
	if !there && n >= MaxPodsPerService {
		return errTooManyPods
	}
	p := g.pods.at(pod)
	atomic.CompareAndSwapUint64(&p.Served, 0, uint64(monotime.Now()))
	setPodState(p, gatePodStatePOD_SERVING)
	if !there {
		atomic.StoreUint32(&p.Slot, g.freeSlot(st))
		atomic.StoreUint32(&st.Pod[n], pod)
		atomic.StoreUint32(&st.Pods, n+1)
		if err := g.updateMaglev(service); err != nil {
			g.log.Error("clients with affinity do not get the new pod yet", "error", err)
		}
	}
	setServiceState(st, gateServiceStateSERVICE_WARM)
	return nil
}

// removeServing ends new flows for a pod. With its last serving pod, the service becomes cold.
func (g *Gate) removeServing(service, pod uint32) {
	g.podTable.serving.Lock()
	defer g.podTable.serving.Unlock()
	st := g.statuses.at(service)
	n := atomic.LoadUint32(&st.Pods)
	for i := range n {
		if atomic.LoadUint32(&st.Pod[i]) != pod {
			continue
		}
		if !g.othersServe(st, pod) {
			setServiceState(st, gateServiceStateSERVICE_COLD)
		}
		atomic.StoreUint32(&st.Pod[i], atomic.LoadUint32(&st.Pod[n-1]))
		atomic.StoreUint32(&st.Pods, n-1)
		if err := g.updateMaglev(service); err != nil {
			g.log.Error("clients with affinity may still get a removed pod", "error", err)
		}
		return
	}
}

// othersServe reports whether a service's new flows have another pod to go to. The caller holds podTable.serving.
func (g *Gate) othersServe(st *gateServiceStatus, pod uint32) bool {
	for i := range atomic.LoadUint32(&st.Pods) {
		if other := st.Pod[i]; other != pod && podState(g.pods.at(other)) == gatePodStatePOD_SERVING {
			return true
		}
	}
	return false
}

// updateMaglev rebuilds a service's Maglev table from its serving pods, or removes it if the service has no affinity or
// no serving pod. The caller holds podTable.serving.
func (g *Gate) updateMaglev(service uint32) error {
	st := g.statuses.at(service)
	n := atomic.LoadUint32(&st.Pods)
	if atomic.LoadUint32(&st.Flags)&uint32(gateServiceFlagSERVICE_AFFINITY) == 0 || n == 0 {
		if err := g.objs.MaglevTables.Delete(service); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("removing a Maglev table: %w", err)
		}
		return nil
	}
	names := make([]uint64, n)
	for i := range names {
		names[i] = g.pods.at(st.Pod[i]).Id
	}
	var m gateMaglevTable
	for at, i := range maglevTable(names, len(m.Pod)) {
		m.Pod[at] = st.Pod[i]
	}
	if err := g.objs.MaglevTables.Put(service, m); err != nil {
		return fmt.Errorf("writing a Maglev table: %w", err)
	}
	return nil
}

// freeSlot returns a bit that no serving pod of the service has. The caller holds podTable.serving.
func (g *Gate) freeSlot(st *gateServiceStatus) uint32 {
	var used uint32
	for i := range atomic.LoadUint32(&st.Pods) {
		used |= 1 << (g.pods.at(st.Pod[i]).Slot & 31)
	}
	slot := uint32(0)
	for used&(1<<slot) != 0 {
		slot++
	}
	return slot
}

// OpenFlows returns the number of a pod's open flows: all of them for a pod on this node, and only those through this
// node for a pod elsewhere. It makes no system call. It returns false for an unknown pod.
func (g *Gate) OpenFlows(service netip.AddrPort, id uint64) (uint32, bool) {
	index, ok := g.podTable.index(service, id)
	if !ok {
		return 0, false
	}
	return atomic.LoadUint32(&g.pods.at(index).Open), true
}

// SetElsewhere sets the number of open flows that a pod on another node has through other edge nodes: its home node's
// count minus this node's. New flows go to the pod with the fewest in total.
func (g *Gate) SetElsewhere(service netip.AddrPort, id uint64, flows uint32) error {
	index, ok := g.podTable.index(service, id)
	if !ok {
		return errUnknownPod(service, id)
	}
	if p := g.pods.at(index); p.Node != 0 {
		atomic.StoreUint32(&p.Elsewhere, flows)
	}
	return nil
}

func errUnknownPod(service netip.AddrPort, id uint64) error {
	return fmt.Errorf("pod %d of %v: not known to the gate", id, service)
}

// maglevTable fills a Maglev lookup table (Eisenbud et al., Maglev, NSDI 2016, 3.4) of a prime size: each entry is the
// index of a name. Every name gets an equal share, give or take one entry, and few entries change when a name is added
// or removed. The result does not depend on the order of the names, which must be distinct. The result is nil without
// names.
func maglevTable(names []uint64, size int) []int {
	if len(names) == 0 {
		return nil
	}
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(names[a], names[b]) })
	offset, skip, next := make([]uint64, len(names)), make([]uint64, len(names)), make([]uint64, len(names))
	for i, n := range names {
		offset[i] = splitmix(n) % uint64(size)
		skip[i] = splitmix(n^0x9e3779b97f4a7c15)%uint64(size-1) + 1
	}
	table := make([]int, size)
	for i := range table {
		table[i] = -1
	}
	for filled := 0; ; {
		for _, i := range order {
			at := (offset[i] + next[i]*skip[i]) % uint64(size)
			for table[at] >= 0 {
				next[i]++
				at = (offset[i] + next[i]*skip[i]) % uint64(size)
			}
			table[at] = i
			next[i]++
			if filled++; filled == size {
				return table
			}
		}
	}
}

// splitmix mixes the bits of a number (Steele et al., Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
