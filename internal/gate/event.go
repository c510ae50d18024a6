// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"

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
	// EventOverBudget: a client exceeded a budget of wakes. At most one is sent in a second.
	EventOverBudget = EventKind(gateEventTypeEVENT_OVER_BUDGET)
	// EventDenied: the rules of a service refused a client. At most one is sent for a service in a minute.
	EventDenied = EventKind(gateEventTypeEVENT_DENIED)
	// EventDeaf: a listening socket of a pod was closed, or the pod, or its home node, refused a SYN because nothing
	// listens there. Another socket of the pod may still listen. If not, the gate gives the pod no new flows: Serve does
	// so again.
	EventDeaf = EventKind(gateEventTypeEVENT_DEAF)
	// EventThaw: a packet asked something of a frozen pod's program: see SetFrozen. Events begins with those of pods that
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
	// pod's kernel acknowledge them. So handshakes and keepalives of such peers thaw the pod as well.
	ThawDirect = ThawCause(gateThawCauseTHAW_DIRECT)
)
