// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"wangell.loutres.me/internal/base/monotime"
)

// Serve lets a pod take new flows, makes its service warm, and releases the SYNs parked there. It returns the number
// of released SYNs.
func (g *Gate) Serve(service netip.AddrPort, id uint64) (int, error) {
	s, _, err := g.startServing(service, id, 0)
	if err != nil {
		return 0, err
	}
	return g.release(s)
}

// ServeShare is like Serve for a pod that others will follow: it receives the oldest parked SYNs, at most share of
// them. The rest stays parked for the other pods, or until Release. Until the given time, retransmissions of it are
// dropped; later ones are sent on at once.
func (g *Gate) ServeShare(service netip.AddrPort, id uint64, share uint32, keep monotime.Time) (int, error) {
	s, pod, err := g.startServing(service, id, keep)
	if err != nil {
		return 0, err
	}
	return g.releaseShare(s, pod, share)
}

// Release releases the SYNs that are parked at a warm service to its serving pods. It returns how many were released.
func (g *Gate) Release(service netip.AddrPort) (int, error) {
	s, ok := g.services.index(service)
	if !ok || serviceState(g.statuses.at(s)) != gateServiceStateSERVICE_WARM {
		return 0, nil
	}
	return g.release(s)
}

// Drain ends new flows for a pod. With the last serving pod, its service becomes cold: SYNs are parked, and the first
// one requests a wake.
func (g *Gate) Drain(service netip.AddrPort, id uint64) error {
	s, pod, err := g.servingIndices(service, id)
	if err != nil {
		return err
	}
	g.removeServing(s, pod)
	setPodState(g.pods.at(pod), gatePodStatePOD_DRAINING)
	return nil
}

// Refuse answers all SYNs that are parked at a service with a RST and makes the service cold. It returns how many were
// answered.
func (g *Gate) Refuse(service netip.AddrPort) int {
	i, ok := g.services.index(service)
	if !ok {
		return 0
	}
	return g.refuse(i)
}

// startServing makes a pod take new flows and its service warm, whose parked SYNs wait for other pods until keep. It
// returns the indices of both.
func (g *Gate) startServing(service netip.AddrPort, id uint64, keep monotime.Time) (s, pod uint32, err error) {
	if s, pod, err = g.servingIndices(service, id); err != nil {
		return 0, 0, err
	}
	atomic.StoreUint64(&g.statuses.at(s).KeptUntil, uint64(keep)) // before the first SYN finds the service warm
	if err := g.addServing(s, pod); err != nil {
		return 0, 0, fmt.Errorf("service %v: %w", service, err)
	}
	g.statuses.at(s).setFlags(waryFlags, 0)
	return s, pod, nil
}

// servingIndices returns the indices of a service and its pod.
func (g *Gate) servingIndices(service netip.AddrPort, id uint64) (s, pod uint32, err error) {
	pod, ok := g.podTable.index(service, id)
	s, known := g.services.index(service)
	if !ok || !known {
		return 0, 0, errUnknownPod(service, id)
	}
	return s, pod, nil
}
