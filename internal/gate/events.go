// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
	"wangell.loutres.me/internal/base/monotime"
)

// EventKind is the kind of an Event.
type EventKind uint32

// The kinds of events.
const (
	EventWake        = EventKind(gateEventTypeEVENT_WAKE)       // the first SYN of a cold service was parked
	EventListen      = EventKind(gateEventTypeEVENT_LISTEN)     // a pod's socket enters LISTEN; it accepts within µs
	EventFirstSYNACK = EventKind(gateEventTypeEVENT_SYNACK)     // a pod's first SYN-ACK passed
	EventFirstByte   = EventKind(gateEventTypeEVENT_FIRST_BYTE) // a pod's first payload passed
	// EventOverBudget: a client exceeded a wake budget. At most one is sent per second.
	EventOverBudget = EventKind(gateEventTypeEVENT_OVER_BUDGET)
	// EventDenied: a service's source rules refused a client. At most one is sent per service and minute.
	EventDenied = EventKind(gateEventTypeEVENT_DENIED)
	// EventDeaf: a listening socket of a pod was closed, or the pod, or its home node, refused a SYN because nothing
	// listens there. Another socket of the pod may still listen. If not, the gate gives the pod no new flows until
	// Serve.
	EventDeaf = EventKind(gateEventTypeEVENT_DEAF)
	// EventThaw: a packet needs the program of a frozen pod; see SetFrozen. Events begins with the events of pods that
	// an earlier reader has left frozen, and may repeat them.
	EventThaw = EventKind(gateEventTypeEVENT_THAW)
)

// Event is something that the gate reports.
type Event struct {
	Kind    EventKind
	Service netip.AddrPort
	Pod     uint64       // the pod's ID; 0 for EventWake, EventOverBudget and EventDenied
	Source  netip.Prefix // EventOverBudget: the client's /24; EventDenied: the client
	Scope   WakeScope    // EventOverBudget: which budget
	Cause   ThawCause    // EventThaw: what asked
	At      monotime.Time
}

// ThawCause says which peer needed a frozen pod.
type ThawCause uint32

// The causes of EventThaw.
const (
	// ThawClient: a client of the service, or the service's front.
	ThawClient = ThawCause(gateThawCauseTHAW_CLIENT)
	// ThawDirect: another peer of the pod, over TCP and IPv4: a client at the pod's own address, such as a probe or a
	// reader of metrics, or a server that the pod is a client of. Its packets bypass the gate, which only sees the
	// acknowledgements of the pod's kernel. So handshakes and keepalives of such peers thaw the pod, too.
	ThawDirect = ThawCause(gateThawCauseTHAW_DIRECT)
)

// Events calls handle for each event, on one goroutine, and sends SYNs that are not answered in time to other pods.
// It stops when the returned function or Close is called; once either has returned, handle is not called again. Only
// one reader may run at a time.
func (g *Gate) Events(handle func(Event)) (stop func() error, err error) {
	r, err := ringbuf.NewReader(g.objs.Events)
	if err != nil {
		return nil, fmt.Errorf("opening the gate's events: %w", err)
	}
	due := g.dueThaws(monotime.Now())
	done := make(chan struct{})
	go func() {
		defer close(done)
		raisePriority()
		for _, ev := range due {
			handle(ev)
		}
		g.readEvents(r, handle)
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

// eventsNice is the nice value of the thread that reads events. Clients wait for its work. The work that it causes,
// such as a hundred pods that thaw at once, must not take the processors from it.
const eventsNice = -10

// raisePriority makes the kernel's scheduler prefer the calling goroutine, which gets a thread of its own. Without
// CAP_SYS_NICE, the thread has the same priority as the others.
func raisePriority() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), eventsNice)
}

// readEvents reads events until the reader is closed.
func (g *Gate) readEvents(r *ringbuf.Reader, handle func(Event)) {
	var rec ringbuf.Record
	for {
		if err := r.ReadInto(&rec); err != nil {
			if !errors.Is(err, os.ErrClosed) {
				g.log.Error("cannot read the gate's events", "error", err)
			}
			return
		}
		if len(rec.RawSample) < int(unsafe.Sizeof(gateEvent{})) {
			continue
		}
		e := (*gateEvent)(unsafe.Pointer(&rec.RawSample[0]))
		if gateEventType(e.Type) == gateEventTypeEVENT_SYN {
			select {
			case g.synSearch.wake <- struct{}{}:
			default:
			}
			continue
		}
		if ev, ok := g.resolve(e); ok {
			handle(ev)
		}
	}
}

// resolve replaces the indices in an event by names; false if its service or pod is gone.
func (g *Gate) resolve(e *gateEvent) (Event, bool) {
	ev := Event{Kind: EventKind(e.Type), At: monotime.Time(e.At)}
	if ev.Kind == EventWake || ev.Kind == EventOverBudget || ev.Kind == EventDenied {
		switch ev.Kind {
		case EventOverBudget:
			ev.Source, ev.Scope = prefixOf(e.Client), WakeScope(e.Scope)
		case EventDenied:
			ev.Source = netip.PrefixFrom(fromBE(e.Client), 32)
		}
		var ok bool
		ev.Service, ok = g.services.addr(e.Index)
		return ev, ok
	}
	if e.Index >= uint32(len(g.pods.items)) {
		return ev, false
	}
	p := g.pods.at(e.Index)
	if p.Generation != e.Generation {
		return ev, false
	}
	var ok bool
	ev.Service, ok = g.services.addr(p.Service)
	ev.Pod = p.Id
	if ev.Kind == EventThaw {
		ev.Cause = ThawCause(e.Scope)
	}
	return ev, ok
}
