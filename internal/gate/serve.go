// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
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

// ServeShare is like Serve for a pod that others will follow: the pod gets the oldest parked SYNs, at most share of
// them. The rest stays parked for the other pods, or until Release. Until the given time, retransmissions of parked
// SYNs are dropped; after it, they are sent on at once.
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

// Refuse answers all SYNs parked at a service with a RST and makes the service cold. It returns how many it answered.
func (g *Gate) Refuse(service netip.AddrPort) int {
	i, ok := g.services.index(service)
	if !ok {
		return 0
	}
	return g.refuse(i)
}

// startServing lets a pod take new flows and makes its service warm. Parked SYNs wait for other pods until keep. It
// returns the indices of service and pod.
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

// releaseRounds bounds how many times release walks the queue. The pause between rounds doubles.
const releaseRounds = 12

// release sends on every SYN parked at a warm service, in order of arrival. The gate removes each one as it passes
// gate_released. It returns how many have passed.
func (g *Gate) release(service uint32) (int, error) {
	st := g.statuses.at(service)
	atomic.StoreUint32(&st.ReleaseTo, 0)
	atomic.StoreUint64(&st.KeptUntil, 0)
	before := atomic.LoadUint64(&st.Released)
	var all error
	for round := range releaseRounds {
		// A ticket below head is in the map, or is finished, or its SYN is just being parked. In the last case the
		// program finds the service warm and sends the SYN on itself.
		head := atomic.LoadUint32(&st.Head)
		left, err := g.releaseUpTo(service, head)
		all = errors.Join(all, err)
		if !left {
			atomic.StoreUint32(&st.Tail, head)
			if atomic.LoadUint32(&st.Parked) == 0 {
				break
			}
			all = errors.Join(all, g.releaseBehindTail(service))
		}
		awaitReleased(round)
	}
	return int(atomic.LoadUint64(&st.Released) - before), all
}

// releaseShare sends on the oldest SYNs parked at a warm service, at most share of them, to one pod. If the service has
// affinity or prefers local pods, they are balanced over the serving pods as usual. It returns how many have passed.
func (g *Gate) releaseShare(service, pod, share uint32) (int, error) {
	st := g.statuses.at(service)
	to := uint32(0)
	chosen := uint32(gateServiceFlagSERVICE_AFFINITY | gateServiceFlagSERVICE_PREFER_LOCAL)
	if atomic.LoadUint32(&st.Flags)&chosen == 0 {
		to = pod + 1
	}
	atomic.StoreUint32(&st.ReleaseTo, to)
	defer atomic.StoreUint32(&st.ReleaseTo, 0)
	before := atomic.LoadUint64(&st.Released)
	end, all := g.ticketAfter(service, share)
	for round := range releaseRounds {
		left, err := g.releaseUpTo(service, end)
		all = errors.Join(all, err)
		if !left {
			atomic.StoreUint32(&st.Tail, end)
			break
		}
		awaitReleased(round)
	}
	return int(atomic.LoadUint64(&st.Released) - before), all
}

// ticketAfter returns the number of the ticket after the oldest n parked ones.
func (g *Gate) ticketAfter(service, n uint32) (uint32, error) {
	st := g.statuses.at(service)
	head, t := atomic.LoadUint32(&st.Head), gateTicket{Service: service, Number: atomic.LoadUint32(&st.Tail)}
	for ; n > 0 && t.Number != head; t.Number++ {
		var p gateParked
		switch err := g.objs.ParkedSyns.Lookup(t, &p); {
		case err == nil:
			n--
		case !errors.Is(err, ebpf.ErrKeyNotExist):
			return t.Number, fmt.Errorf("reading a parked SYN: %w", err)
		}
	}
	return t.Number, nil
}

// releaseUpTo sends on the parked SYNs with tickets below end, and reports whether there were any.
func (g *Gate) releaseUpTo(service, end uint32) (left bool, err error) {
	for n := atomic.LoadUint32(&g.statuses.at(service).Tail); n != end; n++ {
		there, e := g.releaseOne(gateTicket{Service: service, Number: n})
		left, err = left || there, errors.Join(err, e)
	}
	return left, err
}

// awaitReleased waits for frames that the device has queued. The first round does not wait, because most frames have
// passed by then.
func awaitReleased(round int) {
	if round > 0 {
		time.Sleep(50 * time.Microsecond << round)
	}
}

// releaseBehindTail sends on SYNs that were parked just as a refusal passed their tickets.
func (g *Gate) releaseBehindTail(service uint32) error {
	var t gateTicket
	var p gateParked
	it := g.objs.ParkedSyns.Iterate()
	for it.Next(&t, &p) {
		if t.Service != service || !g.behindTail(t) {
			continue
		}
		if _, err := g.releaseOne(t); err != nil {
			return err
		}
	}
	return endOf(it)
}

// releaseOne sends a parked SYN to gate_released, and reports whether there was one.
func (g *Gate) releaseOne(t gateTicket) (bool, error) {
	var p gateParked
	err := g.objs.ParkedSyns.Lookup(t, &p)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading a parked SYN: %w", err)
	}
	f := p.Frame[:p.Len]
	switch tcpSum(f[ethernetHeader:]) {
	case sumPartial:
		setTCPSum(f[ethernetHeader:])
	case sumWrong:
		// The SYN was damaged in transit; any host would drop it.
		return true, g.unpark(t, false)
	}
	copy(f[:6], g.dev.innerMAC)
	if err := g.inject.send(g.inject.outer, f); err != nil {
		return true, fmt.Errorf("sending a parked SYN: %w", err)
	}
	return true, nil
}

// refuse answers every SYN that is parked now with a RST and makes the service cold. It returns how many it answered.
func (g *Gate) refuse(service uint32) int {
	st := g.statuses.at(service)
	head := atomic.LoadUint32(&st.Head)
	// Cold comes first, so that a SYN that is parked from now on requests a wake.
	setServiceState(st, gateServiceStateSERVICE_COLD)
	refused := g.refuseUpTo(service, head)
	// A SYN parked just before has not requested one, and would wait in vain unless a later SYN has.
	late := atomic.LoadUint32(&st.Head)
	if late != head && serviceState(st) == gateServiceStateSERVICE_COLD {
		refused += g.refuseUpTo(service, late)
	}
	return refused
}

// refuseUpTo refuses the SYNs with tickets below head, and returns how many it answered.
func (g *Gate) refuseUpTo(service, head uint32) int {
	st := g.statuses.at(service)
	refused := 0
	for n := atomic.LoadUint32(&st.Tail); n != head; n++ {
		t := gateTicket{Service: service, Number: n}
		var p gateParked
		if err := g.objs.ParkedSyns.Lookup(t, &p); err != nil {
			continue
		}
		if err := g.unpark(t, true); err != nil {
			g.log.Warn("cannot remove a parked SYN", "error", err)
			continue
		}
		if err := g.sendReset(&p); err != nil {
			// The client's device may be gone. The client times out.
			g.log.Debug("cannot send a RST to a client", "error", err)
			continue
		}
		refused++
	}
	atomic.StoreUint32(&st.Tail, head)
	return refused
}

// sendReset answers a parked SYN with a RST, which leaves the way that the SYN came.
func (g *Gate) sendReset(p *gateParked) error {
	ifindex, to := int(p.Origin.Ifindex), p.Origin.ClientMac[:]
	if p.Origin.Path == gateFlowPathPATH_STACK {
		ifindex, to = g.inject.outer, g.dev.innerMAC
	}
	return g.inject.send(ifindex, frame(to, p.Origin.OurMac[:], resetFor(p.Frame[ethernetHeader:p.Len])))
}

// unpark removes a parked SYN.
func (g *Gate) unpark(t gateTicket, refused bool) error {
	args := gateUnparkArgs{Ticket: t}
	if refused {
		args.Refused = 1
	}
	if _, err := g.objs.GateUnpark.Run(&ebpf.RunOptions{Context: args}); err != nil {
		return fmt.Errorf("removing a parked SYN: %w", err)
	}
	return nil
}

// behindTail reports whether releases of the ticket's service start after the ticket, and so miss it.
func (g *Gate) behindTail(t gateTicket) bool {
	return int32(t.Number-atomic.LoadUint32(&g.statuses.at(t.Service).Tail)) < 0
}

// endOf returns the error that ended an iteration. An iteration that was aborted because the map keeps changing is no
// error: the next sweep finds the rest.
func endOf(it *ebpf.MapIterator) error {
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("listing parked SYNs: %w", err)
	}
	return nil
}
