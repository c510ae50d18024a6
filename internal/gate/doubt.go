// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"sync/atomic"
)

// waryFlags are the flags of a service's status that change with its pods rather than with its configuration. While one
// is set, no SYN is parked whose client has not proven where it is, so that forged SYNs neither keep draining pods nor
// wake the service again.
const waryFlags = uint32(gateServiceFlagSERVICE_DRAINS | gateServiceFlagSERVICE_DOUBTED)

// DrainAll announces that all pods of a service are about to drain, so that Drain makes it cold. Until one serves again
// or the last is removed, a SYN is parked only if its client has proven where it is: a forged one is no new client. A
// service with ProofNever parks them all.
func (g *Gate) DrainAll(service netip.AddrPort) {
	if s, ok := g.services.index(service); ok {
		g.statuses.at(s).setFlags(uint32(gateServiceFlagSERVICE_DRAINS), uint32(gateServiceFlagSERVICE_DRAINS))
	}
}

// judgeWake records that a pod is gone. With the last pod of a service, it ends DrainAll: if clients of this gate
// have woken the service and none has connected, the next one must prove where it is. A crash raises no such doubt.
func (g *Gate) judgeWake(service uint32, used, last bool, front uint64) {
	st := g.statuses.at(service)
	inVain := g.doubts.podGone(service, used, last, atomic.LoadUint64(&st.Wakes), front)
	if !last || atomic.LoadUint32(&st.Flags)&uint32(gateServiceFlagSERVICE_DRAINS) == 0 {
		return
	}
	doubted := uint32(0)
	if inVain {
		doubted = uint32(gateServiceFlagSERVICE_DOUBTED)
	}
	st.setFlags(waryFlags, doubted)
}

// setFlags replaces the flags that a mask selects. It returns whether that changed them.
func (st *gateServiceStatus) setFlags(mask, flags uint32) bool {
	for {
		old := atomic.LoadUint32(&st.Flags)
		set := old&^mask | flags&mask
		if atomic.CompareAndSwapUint32(&st.Flags, old, set) {
			return set != old
		}
	}
}
