// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"

	"wangell.loutres.me/internal/base/monotime"
)

// Wake asks the controller for a pod.
type Wake struct {
	Service netip.AddrPort
	// Seq numbers the wakes that this daemon has asked for at this service since its start.
	Seq uint64
	// SYNSeen is when the gate parked the first SYN; Noticed is when the daemon read the gate's event.
	SYNSeen, Noticed monotime.Time
	// Parked is the number of parked SYNs when the message was created.
	Parked uint32
}

// Refuse reports that a wake failed: parked clients get an RST and the service is cold again.
type Refuse struct {
	Service netip.AddrPort
	Reason  string // at most 200 bytes
}

// PodState is the state in which the controller wants a daemon to keep a pod.
type PodState uint8

// The states of a pod, in the order in which it passes through them.
const (
	PodStarting PodState = 1 // its network exists; its home node waits for it to listen, then serves it
	PodServing  PodState = 2 // it listens and gets new flows
	PodDraining PodState = 3 // it gets no new flow; its open flows continue
)

// Backend is a pod of a service in a Backends message.
type Backend struct {
	// PodID is unique among all pods that a service ever has.
	PodID uint64
	State PodState
	// Addr is the pod's address and the port on which it listens. The zero value means "not known" and is invalid for
	// PodServing.
	Addr netip.AddrPort
	// Node is the name of its home node, at most 253 bytes.
	Node string
	// NodeAddr is the address at which the home node accepts encapsulated packets; zero if there is only one node.
	NodeAddr netip.Addr
	// Netns is the path of its network namespace, at most 255 bytes; empty except on its home node.
	Netns string
	// Probe is the readinessProbe that has to succeed before the pod gets new flows (readiness.Spec, encoded; at most
	// MaxProbe bytes); empty if there is none, and except on its home node. A message has at most MaxProbes different
	// ones.
	Probe string
	// Runtime is the container runtime's ID of a pod with a Probe, at most 253 bytes.
	Runtime string
}

// Backends lists all pods of a service. Daemons remove pods that are not listed and forget their flows. A service
// without a serving pod is cold: its SYNs are parked.
type Backends struct {
	Service netip.AddrPort
	// Generation grows with every change of the service. Daemons ignore a message with an older one.
	Generation uint64
	// Sharing is the number of pods that share the parked SYNs, including pods that are still being started and are not
	// in Pods yet. A pod that begins to serve gets its share, and the rest waits briefly for the others. With 0, the
	// first pod gets all of them.
	Sharing uint8
	Pods    []Backend // at most 64 per message
}

// Listening reports that a pod's socket has entered LISTEN, as observed by the kernel of its home node, and that its
// Probe has succeeded if it has one.
type Listening struct {
	Service netip.AddrPort
	PodID   uint64
	At      monotime.Time
}

// Deaf reports that a pod that served has closed its last listening socket, or that its process has ended, as observed
// by the kernel of its home node. Until Listening the pod gets no new flow.
type Deaf struct {
	Service netip.AddrPort
	PodID   uint64
	At      monotime.Time // when that was seen
}

// Unready reports that a pod with a Probe listens, but is not ready: its Probe has not succeeded yet, or fails again.
// Until Listening the pod gets no new flow. It is sent again when the answer changes.
type Unready struct {
	Service netip.AddrPort
	PodID   uint64
	At      monotime.Time // when its socket entered LISTEN; zero if it was ready before
	Answer  string        // what the Probe said last, at most 200 bytes; empty if it has not run yet
	Failed  bool          // its startupProbe has not succeeded in time
}

// Trace reports times of a wake that only the gate observes; zero means "not known yet". A wake may have several Trace
// messages, each with more of the times.
type Trace struct {
	Service     netip.AddrPort
	PodID       uint64
	Released    monotime.Time // the last parked SYN was released
	FirstSYNACK monotime.Time // the pod sent its first SYN-ACK
	FirstByte   monotime.Time // the pod sent its first payload byte
	ReleasedN   uint32        // number of released SYNs
}

// Caller reports the span of a client whose request has waited for a pod of a service and gets one, from its header
// traceparent (W3C Trace Context, level 1).
type Caller struct {
	Service netip.AddrPort
	TraceID [16]byte // not zero
	SpanID  [8]byte  // not zero
	Flags   uint8    // 1: the client records the span
}

// Type returns TypeCaller.
func (*Caller) Type() Type { return TypeCaller }

// Type returns TypeWake.
func (*Wake) Type() Type { return TypeWake }

// Type returns TypeRefuse.
func (*Refuse) Type() Type { return TypeRefuse }

// Type returns TypeBackends.
func (*Backends) Type() Type { return TypeBackends }

// Type returns TypeListening.
func (*Listening) Type() Type { return TypeListening }

// Type returns TypeDeaf.
func (*Deaf) Type() Type { return TypeDeaf }

// Type returns TypeUnready.
func (*Unready) Type() Type { return TypeUnready }

// Type returns TypeTrace.
func (*Trace) Type() Type { return TypeTrace }
