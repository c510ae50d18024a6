// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/freezer"
)

// frozenPods are the pods of this node that are frozen, or about to be. Each has a lock of its own, so that a thaw
// waits neither for another pod nor for changes of its service.
type frozenPods struct {
	records freezeRecords

	mu   sync.Mutex
	pods map[uint64]*frozenPod // by the pod's ID
}

// frozenPod is a pod that is frozen, or about to be.
type frozenPod struct {
	id      uint64
	service *service
	memory  *podMemory
	cgroup  string        // empty until it was found
	visits  *visits       // of a pod of a cluster; else nil
	gone    chan struct{} // closed once the pod runs, is not about to be frozen, and its thaw is known
	end     context.CancelFunc
	ctx     context.Context // until it should run again

	mu  sync.Mutex // held while its cgroup is changed; guards:
	seq uint64     // of the last decision about it; 0 if an earlier daemon froze it
	// settled is set once its freezing has ended, successfully or not. Until then, hold does the work of a thaw.
	settled bool
	frozen  bool
	// running is set once its processes run again. The thaw is reported only after the pod is removed from the frozen
	// pods.
	running bool
	// reclaimed is set once part of its memory may have been reclaimed.
	reclaimed bool
	since     monotime.Time // when it became frozen, or running
	weight    uint64        // of its CPU before it was frozen; 0 if it need not be restored
}

// visits keeps track of the visitors of a frozen pod of a cluster: kubelet's probes, scrapers of metrics and people
// with kubectl exec need its program, but do not use its service. The pod is thawed while they are there.
type visits struct {
	netns string // of the pod
	// begin holds an element while a visitor waits.
	begin chan struct{}
	// typed holds an element once somebody has sent a container standard input.
	typed chan struct{}
	mains []int // the main processes of its containers
	doors *freezer.Watched
	local *loopback
	last  monotime.Time // time of its last use before the freeze
	since monotime.Time // when it was last frozen; zero if an earlier daemon did that
	look  bool          // whether to check that it is not at work before it is frozen
}

func newVisits(netns string) *visits {
	return &visits{netns: netns, begin: make(chan struct{}, 1), typed: make(chan struct{}, 1)}
}

// place returns where the pod's processes are.
func (q *frozenPod) place() frozenPlace {
	at := frozenPlace{cgroup: q.cgroup}
	if q.visits != nil {
		at.netns = q.visits.netns
	}
	return at
}

// addr returns the address of the pod's service, which may change. q.mu may be held, but not the service's.
func (q *frozenPod) addr() netip.AddrPort {
	q.service.mu.Lock()
	defer q.service.mu.Unlock()
	return q.service.first().addr
}

// addrs returns the addresses at which the gate has the pod: one for each port of its service. q.mu may be held, but
// not the service's.
func (q *frozenPod) addrs() (addrs []netip.AddrPort) {
	q.service.mu.Lock()
	defer q.service.mu.Unlock()
	for _, port := range q.service.ports() {
		if port.pods[q.id] != nil {
			addrs = append(addrs, port.addr)
		}
	}
	return addrs
}

// find returns a pod that is frozen, or about to be; nil if the pod runs.
func (f *frozenPods) find(id uint64) *frozenPod {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods[id]
}

// isFrozen reports whether a pod is frozen, or about to be.
func (f *frozenPods) isFrozen(id uint64) bool { return f.find(id) != nil }

// number counts the pods that are frozen, or about to be.
func (f *frozenPods) number() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.pods)
}

// add adds a pod that is about to be frozen. It returns nil if it is there already.
func (f *frozenPods) add(ctx context.Context, p *pod, service *service, at frozenPlace, seq uint64) *frozenPod {
	f.mu.Lock()
	defer f.mu.Unlock()
	if q := f.pods[p.id]; q != nil {
		return nil
	}
	q := &frozenPod{
		id: p.id, service: service, memory: &p.memory, cgroup: at.cgroup, seq: seq, gone: make(chan struct{}),
	}
	if at.netns != "" {
		q.visits = newVisits(at.netns)
	}
	q.ctx, q.end = context.WithCancel(ctx)
	f.pods[p.id] = q
	return q
}

// all returns all pods that are frozen, or about to be.
func (f *frozenPods) all() []*frozenPod {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.pods))
}

// remove forgets a pod that runs. It reports whether the pod was there.
func (f *frozenPods) remove(q *frozenPod) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods[q.id] != q {
		return false
	}
	delete(f.pods, q.id)
	close(q.gone)
	return true
}

// freezeTimeout is how long the processes of a pod may take to stop. A process that waits for a disk takes as long as
// the disk.
const freezeTimeout = 5 * time.Second

// podMemory tracks the memory of a pod that is frozen from time to time.
type podMemory struct {
	// reclaimed is set once its memory was reclaimed for the first time.
	reclaimed atomic.Bool
	// used is the memory that the pod used between the last two reclaims; nil if unknown or little.
	used atomic.Pointer[freezer.WorkingSet]
}
