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
)

// maglevSize is MAGLEV of bpf/types.h.
const maglevSize = len(gateMaglev{}.Pod)

// maglevTable fills a table of consistent hashing (Eisenbud et al., Maglev, NSDI 2016, 3.4): for each place, which of
// the names has it. Each name has an equal share, give or take one place, and few places change their names when a name
// comes or goes. It does not depend on the order of names, which are to differ. Without names it is nil.
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

// splitmix mixes the bits of a number (Steele et al., OOPSLA 2014).
func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hashPods makes the table of consistent hashing of a service anew, if it wants one, from the pods that take flows.
// g.podTable.serving is locked.
func (g *Gate) hashPods(service uint32) error {
	st := g.states.at(service)
	n := atomic.LoadUint32(&st.Pods)
	if atomic.LoadUint32(&st.Flags)&serviceAffinity == 0 || n == 0 {
		if err := g.objs.Maglevs.Delete(service); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("removing a table of pods: %w", err)
		}
		return nil
	}
	names := make([]uint64, n)
	for i := range names {
		names[i] = g.pods.at(st.Pod[i]).Id
	}
	var m gateMaglev
	for at, i := range maglevTable(names, maglevSize) {
		m.Pod[at] = st.Pod[i]
	}
	if err := g.objs.Maglevs.Put(service, m); err != nil {
		return fmt.Errorf("telling the gate a table of pods: %w", err)
	}
	return nil
}

// freeSlot finds a bit for a pod among those of its service that take flows. g.podTable.serving is locked.
func (g *Gate) freeSlot(st *gateServiceState) uint32 {
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

// OpenFlows returns how many flows a pod has open: all of one on this node, those by this node of another. It makes no
// system call. It is false for a pod that is not known.
func (g *Gate) OpenFlows(service netip.AddrPort, id uint64) (uint32, bool) {
	index, ok := g.podIndex(service, id)
	if !ok {
		return 0, false
	}
	return atomic.LoadUint32(&g.pods.at(index).Open), true
}

// SetElsewhere tells how many open flows a pod on another node has by other edge nodes than this one: its home node's
// count, less the one here. New flows go to the pod with the fewest in all.
func (g *Gate) SetElsewhere(service netip.AddrPort, id uint64, flows uint32) error {
	index, ok := g.podIndex(service, id)
	if !ok {
		return fmt.Errorf("pod %d of %v: not known to the gate", id, service)
	}
	if p := g.pods.at(index); p.Node != 0 {
		atomic.StoreUint32(&p.Elsewhere, flows)
	}
	return nil
}
