// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"wangell.loutres.me/internal/monotime"
)

// EventKind tells what happened.
type EventKind uint32

// What the gate tells.
const (
	EventWake        = EventKind(gateEventTypeEVENT_WAKE)       // the first SYN of a cold service was parked
	EventListen      = EventKind(gateEventTypeEVENT_LISTEN)     // a pod's socket enters LISTEN (it may be some microseconds before it accepts)
	EventFirstSYNACK = EventKind(gateEventTypeEVENT_SYNACK)     // a pod's first SYN-ACK passed
	EventFirstByte   = EventKind(gateEventTypeEVENT_FIRST_BYTE) // a pod's first payload byte passed
)

// Event is something that the gate tells.
type Event struct {
	Kind    EventKind
	Service netip.AddrPort
	Pod     uint64 // the pod's ID; 0 for EventWake
	At      monotime.Time
}

// Events reads the gate's events and gives SYNs that are not answered to other pods, until the returned function or Close is called; handle is called for each, on one
// goroutine. When either has returned, handle is not called any more. One reader at a time.
func (g *Gate) Events(handle func(Event)) (stop func() error, err error) {
	r, err := ringbuf.NewReader(g.objs.Events)
	if err != nil {
		return nil, fmt.Errorf("opening the gate's events: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var rec ringbuf.Record
		for {
			if err := r.ReadInto(&rec); err != nil {
				if !errors.Is(err, os.ErrClosed) {
					g.log.Error("the gate's events cannot be read", "error", err)
				}
				return
			}
			if len(rec.RawSample) < int(unsafe.Sizeof(gateEvent{})) {
				continue
			}
			e := (*gateEvent)(unsafe.Pointer(&rec.RawSample[0]))
			if e.Type == gateEventTypeEVENT_SYN {
				select {
				case g.silence.wake <- struct{}{}:
				default:
				}
				continue
			}
			if ev, ok := g.event(e); ok {
				handle(ev)
			}
		}
	}()
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		g.watchSYNs(done)
	}()
	g.stopEvents = sync.OnceValue(func() error {
		err := r.Close()
		<-done
		<-watching
		return err
	})
	return g.stopEvents, nil
}

// event gives an event its names; false if what it is about is gone.
func (g *Gate) event(e *gateEvent) (Event, bool) {
	ev := Event{Kind: EventKind(e.Type), At: monotime.Time(e.At)}
	if ev.Kind == EventWake {
		var ok bool
		ev.Service, ok = g.addrOf(e.Index)
		return ev, ok
	}
	if e.Index >= uint32(len(g.pods.items)) {
		return ev, false
	}
	p := g.pods.at(e.Index)
	if p.Generation != e.Generation {
		return ev, false
	}
	ev.Service, ev.Pod = fromServiceKey(p.Vip), p.Id
	return ev, true
}

// Pending returns the services that have parked SYNs and are not warm, for a daemon that starts: their wake
// events went to an earlier one.
func (g *Gate) Pending() []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range g.Services() {
		if g.Phase(a) != Warm && g.ServiceCounters(a).ParkedNow > 0 {
			out = append(out, a)
		}
	}
	return out
}

// Refuse answers all parked SYNs of a service with a RST and makes it cold. It returns how many clients were told.
func (g *Gate) Refuse(a netip.AddrPort) int {
	i, ok := g.index(a)
	if !ok {
		return 0
	}
	return g.refuse(i)
}
