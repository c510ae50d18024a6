// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const ethernetHeader = 14

// injector sends frames out of devices of this machine.
type injector struct {
	fd    int
	outer int // wangell1: what is sent there comes in by wangell0
}

func newInjector(outer int) (*injector, error) {
	// Protocol 0: it sends, and receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket: %w: this needs CAP_NET_RAW", err)
	}
	// No queue in between: order stays, and nothing waits.
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("setting up a packet socket: %w", err)
	}
	return &injector{fd: fd, outer: outer}, nil
}

func (i *injector) send(ifindex int, frame []byte) error {
	to := &unix.SockaddrLinklayer{Ifindex: ifindex, Halen: 6, Protocol: binary.NativeEndian.Uint16(frame[12:])}
	copy(to.Addr[:], frame[:6])
	return unix.Sendto(i.fd, frame, 0, to)
}

func (i *injector) close() error { return unix.Close(i.fd) }

// releaseRounds bounds how often release goes through the queue; each round waits a little longer.
const releaseRounds = 12

// release sends every parked SYN of a warm service on, in order of arrival. The gate itself forgets each
// one as it passes (gate_released). It returns how many went.
func (g *Gate) release(service uint32) (int, error) {
	st := g.states.at(service)
	atomic.StoreUint32(&st.To, 0)
	before := atomic.LoadUint64(&st.Released)
	var all error
	for round := range releaseRounds {
		// Every ticket below head is either in the map, or gone, or its SYN is just being parked: that SYN's
		// program finds the service warm and lets it go itself.
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

// releaseShare sends those of a warm service's parked SYNs on that came first, so many of them, to one pod. Where something
// else than the number of flows decides, the pods that serve share them as ever. It returns how many went.
func (g *Gate) releaseShare(service, pod, share uint32) (int, error) {
	st := g.states.at(service)
	to := uint32(0)
	if atomic.LoadUint32(&st.Flags) == 0 {
		to = pod + 1
	}
	atomic.StoreUint32(&st.To, to)
	defer atomic.StoreUint32(&st.To, 0)
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

// ticketAfter is the ticket behind the first n that are parked.
func (g *Gate) ticketAfter(service, n uint32) (uint32, error) {
	st := g.states.at(service)
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

// releaseUpTo sends the SYNs with tickets below end on. It tells whether there were some.
func (g *Gate) releaseUpTo(service, end uint32) (left bool, err error) {
	for n := atomic.LoadUint32(&g.states.at(service).Tail); n != end; n++ {
		there, e := g.releaseOne(gateTicket{Service: service, Number: n})
		left, err = left || there, errors.Join(err, e)
	}
	return left, err
}

// awaitReleased waits for what may be on its way through the device's queue, or was dropped there. At first nothing is
// waited for: mostly all has gone.
func awaitReleased(round int) {
	if round > 0 {
		time.Sleep(50 * time.Microsecond << round)
	}
}

// releaseBehindTail sends those SYNs on that were parked just when a refusal had gone by their tickets.
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

// releaseOne sends a parked SYN to the gate again. It tells whether there was one.
func (g *Gate) releaseOne(t gateTicket) (bool, error) {
	var p gateParked
	err := g.objs.ParkedSyns.Lookup(t, &p)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading a parked SYN: %w", err)
	}
	frame := p.Frame[:p.Len]
	switch tcpSum(frame[ethernetHeader:]) {
	case sumPartial:
		setTCPSum(frame[ethernetHeader:])
	case sumWrong:
		// It was damaged on its way; a host would have dropped it.
		return true, g.unpark(t, false)
	}
	copy(frame[:6], g.dev.innerMAC)
	if err := g.inject.send(g.inject.outer, frame); err != nil {
		return true, fmt.Errorf("sending a parked SYN on: %w", err)
	}
	return true, nil
}

// refuse answers every SYN that is parked now with a RST, and makes the service cold. It returns how many
// clients were told.
func (g *Gate) refuse(service uint32) int {
	st := g.states.at(service)
	head := atomic.LoadUint32(&st.Head)
	// Cold first: a SYN that is parked from now on asks for a wake of its own.
	g.setPhase(service, gatePhasePHASE_COLD)
	told := g.refuseUpTo(service, head)
	// One that was parked just before that did not ask. If nobody has since, it would wait for nothing.
	if late := atomic.LoadUint32(&st.Head); late != head && g.phase(service) == gatePhasePHASE_COLD {
		told += g.refuseUpTo(service, late)
	}
	return told
}

// refuseUpTo refuses the SYNs with tickets below head.
func (g *Gate) refuseUpTo(service, head uint32) int {
	st := g.states.at(service)
	told := 0
	for n := atomic.LoadUint32(&st.Tail); n != head; n++ {
		t := gateTicket{Service: service, Number: n}
		var p gateParked
		if err := g.objs.ParkedSyns.Lookup(t, &p); err != nil {
			continue
		}
		if err := g.unpark(t, true); err != nil {
			g.log.Warn("a parked SYN cannot be removed", "error", err)
			continue
		}
		if err := g.sendReset(&p); err != nil {
			// The client's device may be gone; it learns by its own timeout.
			g.log.Debug("a client cannot be told", "error", err)
			continue
		}
		told++
	}
	atomic.StoreUint32(&st.Tail, head)
	return told
}

// sendReset sends the RST for a parked SYN the way that its client came.
func (g *Gate) sendReset(p *gateParked) error {
	frame := make([]byte, 0, ethernetHeader+40)
	ifindex := int(p.Origin.Ifindex)
	if p.Origin.Path == gateFlowPathPATH_STACK {
		ifindex = g.inject.outer
		frame = append(frame, g.dev.innerMAC...)
	} else {
		frame = append(frame, p.Origin.ClientMac[:]...)
	}
	frame = append(frame, p.Origin.OurMac[:]...)
	frame = append(frame, 0x08, 0x00)
	frame = append(frame, resetFor(p.Frame[ethernetHeader:p.Len])...)
	return g.inject.send(ifindex, frame)
}

// unpark forgets a parked SYN.
func (g *Gate) unpark(t gateTicket, refused bool) error {
	args := gateUnparkArgs{Ticket: t}
	if refused {
		args.Refused = 1
	}
	if _, err := g.objs.GateUnpark.Run(&ebpf.RunOptions{Context: args}); err != nil {
		return fmt.Errorf("forgetting a parked SYN: %w", err)
	}
	return nil
}
