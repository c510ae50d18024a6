// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// indexPool hands out indices of a map.
type indexPool struct {
	free []uint32 // indices that have been put back
	next uint32   // indices from here on were never used
}

// adopt marks the indices for which used reports true as taken, up to the limit.
func (p *indexPool) adopt(limit uint32, used func(uint32) bool) {
	for i := range limit {
		if used(i) {
			p.next = i + 1
		}
	}
	for i := range p.next {
		if !used(i) {
			p.free = append(p.free, i)
		}
	}
}

// acquire returns an unused index below the limit; false if there is none.
func (p *indexPool) acquire(limit uint32) (uint32, bool) {
	if n := len(p.free); n > 0 {
		i := p.free[n-1]
		p.free = p.free[:n-1]
		return i, true
	}
	if p.next >= limit {
		return 0, false
	}
	p.next++
	return p.next - 1, true
}

// put makes an index available again.
func (p *indexPool) put(i uint32) { p.free = append(p.free, i) }

// serviceTable maps services to indices.
type serviceTable struct {
	mu        sync.Mutex
	pool      indexPool
	indices   map[netip.AddrPort]uint32
	addrs     map[uint32]netip.AddrPort
	left      map[netip.AddrPort]leftAddress
	vips      map[netip.Addr]uint32 // number of service addresses, also of those in left, by VIP
	announced announcements
	repeats   repeats
	sets      sourceSets
}

// leftAddress is a former address of a service. Its open flows go on, and SYNs get a RST.
type leftAddress struct {
	service uint32        // its index
	until   monotime.Time // when its flows must end, given to MoveService
}

// announcements says for which VIPs this node answers ARP requests.
type announcements struct {
	all  bool
	vips map[netip.Addr]bool // if not all
}

func (a *announcements) has(vip netip.Addr) bool { return a.all || a.vips[vip] }

// index returns a service's index.
func (t *serviceTable) index(a netip.AddrPort) (uint32, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.indices[a]
	return i, ok
}

// addr returns the address of the service with an index.
func (t *serviceTable) addr(index uint32) (netip.AddrPort, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, ok := t.addrs[index]
	return a, ok
}

// podTable maps pods to indices.
type podTable struct {
	mu         sync.Mutex
	pool       indexPool
	services   map[netip.AddrPort]map[uint64]uint32 // service → ID of a pod → its index
	generation uint32                               // of the latest pod
	devices    map[uint32][]uint32                  // interface index of a local pod → its index, one for each port

	serving sync.Mutex // held while the pods that take a service's new flows change
}

// adopt takes over the pods that an earlier process has added to services with these addresses, by index.
func (t *podTable) adopt(pods *view[gatePod], addrs map[uint32]netip.AddrPort) {
	t.services, t.devices = map[netip.AddrPort]map[uint64]uint32{}, map[uint32][]uint32{}
	// Above the generation of any removed pod, whose flows may still be in the table.
	t.generation = uint32(time.Now().Unix())
	used := func(i uint32) bool { return podState(pods.at(i)) != gatePodStatePOD_UNUSED }
	t.pool.adopt(uint32(len(pods.items)), used)
	for i := range t.pool.next {
		p := pods.at(i)
		t.generation = max(t.generation, p.Generation)
		if used(i) {
			service := fromServiceKey(p.Vip)
			// The earlier process may have been killed while it changed the address.
			if a, ok := addrs[p.Service]; ok && a != service {
				service = a
				p.setVIP(a)
			}
			t.add(service, p.Id, i)
			t.addDevice(p.Ifindex, i)
		}
	}
}

// addDevice records that a pod has a device; 0 is none. The caller holds mu.
func (t *podTable) addDevice(ifindex, index uint32) {
	if ifindex != 0 && !slices.Contains(t.devices[ifindex], index) {
		t.devices[ifindex] = append(t.devices[ifindex], index)
	}
}

// removeDevice reverses addDevice.
func (t *podTable) removeDevice(ifindex, index uint32) {
	left := slices.DeleteFunc(t.devices[ifindex], func(i uint32) bool { return i == index })
	if t.devices[ifindex] = left; len(left) == 0 {
		delete(t.devices, ifindex)
	}
}

// add adds a pod. The caller holds mu.
func (t *podTable) add(service netip.AddrPort, id uint64, index uint32) {
	if t.services[service] == nil {
		t.services[service] = map[uint64]uint32{}
	}
	t.services[service][id] = index
}

// remove removes a pod. The caller holds mu.
func (t *podTable) remove(service netip.AddrPort, id uint64) {
	delete(t.services[service], id)
	if len(t.services[service]) == 0 {
		delete(t.services, service)
	}
}

// withoutFronts returns how many pods a service has, without its fronts. The caller holds mu.
func (t *podTable) withoutFronts(service netip.AddrPort) (n int) {
	for id := range t.services[service] {
		if !IsFront(id) {
			n++
		}
	}
	return n
}

// index returns a pod's index.
func (t *podTable) index(service netip.AddrPort, id uint64) (uint32, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.services[service][id]
	return i, ok
}

// used returns the indices of all pods.
func (t *podTable) used() []uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []uint32
	for _, pods := range t.services {
		for _, i := range pods {
			out = append(out, i)
		}
	}
	return out
}

// count returns the number of pods.
func (t *podTable) count() uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pool.next - uint32(len(t.pool.free))
}

func podState(p *gatePod) gatePodState {
	return gatePodState(atomic.LoadUint32((*uint32)(&p.State)))
}

func setPodState(p *gatePod, s gatePodState) { atomic.StoreUint32((*uint32)(&p.State), uint32(s)) }

// setVIP changes the service address of a pod. The programs may see the new port before the new address.
func (p *gatePod) setVIP(a netip.AddrPort) {
	k := toServiceKey(a)
	p.Vip.Port = k.Port
	for i, w := range k.Addr.W {
		atomic.StoreUint32(&p.Vip.Addr.W[i], w)
	}
}

func serviceState(st *gateServiceStatus) gateServiceState {
	return gateServiceState(atomic.LoadUint32((*uint32)(&st.State)))
}

func setServiceState(st *gateServiceStatus, s gateServiceState) {
	atomic.StoreUint32((*uint32)(&st.State), uint32(s))
}
