// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"net/netip"

	"wangell.loutres.me/internal/monotime"
)

// Type names a message; it is the first byte of its encoding.
type Type uint8

// The messages. The direction is that of the message itself; every reliable message is acknowledged.
const (
	TypeSync      Type = 3  // controller → daemon: a piece of the table of services
	TypeWake      Type = 4  // daemon → controller: SYNs are parked at a cold service
	TypeRefuse    Type = 5  // controller → daemon: the wake failed; refuse what is parked
	TypeBackends  Type = 6  // controller → daemon: the pods of a service
	TypeListening Type = 7  // daemon → controller: a pod's socket listens
	TypeTrace     Type = 8  // daemon → controller: times of a wake that only the gate knows
	TypeStats     Type = 9  // daemon → controller: counters of pods
	TypeIdle      Type = 10 // daemon → controller: no packet for the idle timeout
	TypeQuiet     Type = 13 // daemon → controller: a drained pod's last packet and open flows
	TypeNodes     Type = 14 // controller → daemon: the nodes whose daemons are there
	TypeNode      Type = 15 // daemon → controller: what its node is
	TypePodReport Type = 16 // daemon → controller: a step in the life of a pod on its node
	TypeUsage     Type = 17 // daemon → controller: what pods use of their node
	TypeLoads     Type = 18 // daemon → controller → daemons: open flows of pods
)

// Flags of a Service.
const (
	// FlagAnnounce: one of the nodes answers ARP for the service address (the one that internal/node chooses from
	// Nodes). Without it, somebody else brings the packets to the nodes.
	FlagAnnounce uint8 = 1 << iota
	// FlagAffinity: a client address keeps its pod (consistent hashing).
	FlagAffinity
	// FlagPreferLocal: pods on the edge node come first.
	FlagPreferLocal
	// FlagUsage: the home nodes of its pods tell what these use (Usage).
	FlagUsage
)

// String gives the type's name as docs/protocol.md writes it.
func (t Type) String() string {
	names := map[Type]string{
		TypeSync: "SYNC", TypeWake: "WAKE", TypeRefuse: "REFUSE", TypeBackends: "BACKENDS",
		TypeListening: "LISTENING", TypeTrace: "TRACE", TypeStats: "STATS", TypeIdle: "IDLE",
		TypeQuiet: "QUIET",
		TypeNodes: "NODES", TypeNode: "NODE", TypePodReport: "POD_REPORT", TypeUsage: "USAGE",
		TypeLoads: "LOADS",
	}
	if n, ok := names[t]; ok {
		return n
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Message is one of the structs below, as a pointer.
type Message interface{ Type() Type }

// reliable tells which messages are repeated until they are acknowledged: of the others the next one says all anew.
func reliable(t Type) bool { return t != TypeStats && t != TypeUsage && t != TypeLoads }

// ofSession tells which messages say what is in one session only: the next session's begin says it anew.
func ofSession(t Type) bool { return t == TypeNode || t == TypePodReport }

// Service is an entry of the table of services.
type Service struct {
	// Addr is the service address; it is the key of the table.
	Addr netip.AddrPort
	// Name is "namespace/name", for logs only; at most 253+1+63 bytes.
	Name string
	// IdleSeconds is the idle timeout.
	IdleSeconds uint32
	// MaxParked and MaxParkedPerSource bound the parked SYNs.
	MaxParked, MaxParkedPerSource uint16
	// Flags are Flag bits.
	Flags uint8
	// Retries is how many other pods a SYN is given to at most, after one that refused or did not answer.
	Retries uint8
}

// Sync is a piece of the table of services. It turns the table of version Base into that of Version;
// Base 0 is the empty table. All pieces 0..Pieces-1 together make one step, applied when complete.
// The package makes and applies it; it is never given to a Receive handler.
type Sync struct {
	Base, Version uint64
	// Hash is the hash of the table after the step: the sum, modulo 2^64, of the first 8 bytes of
	// the SHA-256 of each entry's encoding.
	Hash          uint64
	Piece, Pieces uint16
	Upserts       []Service
	Removals      []netip.AddrPort
}

// Wake asks for a pod.
type Wake struct {
	Service netip.AddrPort
	// Seq counts the wakes that this daemon asked for this service since its start.
	Seq uint64
	// SYNSeen is when the first SYN was parked; Told is when the daemon's user space read the event.
	SYNSeen, Told monotime.Time
	// Parked is how many SYNs were parked when the message was made.
	Parked uint32
}

// Refuse tells that a wake failed: parked clients get an RST and the service is cold again.
type Refuse struct {
	Service netip.AddrPort
	Reason  string // at most 200 bytes
}

// PodState is what a daemon shall do with a pod.
type PodState uint8

// The states of a pod, in order of its life.
const (
	PodStarting PodState = 1 // its network exists; watch for LISTEN, then serve
	PodServing  PodState = 2 // it listens; give it flows
	PodDraining PodState = 3 // no new flow; open ones go on
)

// Backend is a pod as daemons see it.
type Backend struct {
	// PodID is unique among the pods of a service for all time.
	PodID uint64
	State PodState
	// Addr is the pod's address and the port on which it listens. The zero value means "not known",
	// which PodServing refuses.
	Addr netip.AddrPort
	// Node is the name of its home node, at most 253 bytes.
	Node string
	// NodeAddr is where the home node takes encapsulated packets; the zero value if there is one node only.
	NodeAddr netip.Addr
	// Netns is the path of its network namespace, at most 255 bytes; empty but on its home node.
	Netns string
}

// Backends tells all pods of a service. A pod that is not in it is gone: its flows are forgotten.
// A service with no serving pod is cold: SYNs are parked.
type Backends struct {
	Service netip.AddrPort
	// Generation grows with every change of this service; an older one is ignored.
	Generation uint64
	// Sharing is how many pods share the SYNs that are parked, those included that are being started and are not in Pods
	// yet: a pod that begins to serve gets its share, and the rest waits a moment for the others. 0: nobody waits for
	// another pod.
	Sharing uint8
	Pods    []Backend // at most 64 a message
}

// Listening tells that a pod's socket listens, as its home node's kernel said.
type Listening struct {
	Service netip.AddrPort
	PodID   uint64
	At      monotime.Time
}

// Trace tells times of a wake that only the gate knows; zero means not (yet) known. It may come
// more than once for a wake, each time with more.
type Trace struct {
	Service     netip.AddrPort
	PodID       uint64
	Released    monotime.Time // the last parked SYN was let go
	FirstSYNACK monotime.Time // the pod's first SYN-ACK went out
	FirstByte   monotime.Time // the pod's first payload byte went out
	ReleasedN   uint32        // how many parked SYNs were released
}

// PodStats are counters of one pod, since its start.
type PodStats struct {
	Service    netip.AddrPort
	PodID      uint64
	OpenFlows  uint32
	NewFlows   uint64
	BytesIn    uint64 // client to pod, IP lengths
	BytesOut   uint64 // pod to client
	LastPacket monotime.Time
}

// Stats carries counters of pods that changed.
type Stats struct{ Pods []PodStats } // at most 14 a message

// Idle tells that a service has had no packet for its idle timeout.
type Idle struct {
	Service    netip.AddrPort
	LastPacket monotime.Time
}

// Quiet answers a Backends message that drains a pod, once the gate gives it no new flow.
type Quiet struct {
	Service    netip.AddrPort
	PodID      uint64
	Generation uint64 // of the Backends message that it answers
	LastPacket monotime.Time
	OpenFlows  uint32
}

// NodeInfo is a node as others see it.
type NodeInfo struct {
	Name string     // at most 253 bytes
	Addr netip.Addr // where it takes encapsulated packets, and from where it sends them
}

// Nodes tells the nodes whose daemons are there, in pieces. All pieces 0..Pieces-1 of a Generation together are
// the whole; an older Generation is ignored. NewNodes cuts it. Generations count within a session: what a daemon
// had of another session's is old.
type Nodes struct {
	Generation    uint64
	Piece, Pieces uint16
	Nodes         []NodeInfo // at most 32 a message; each node once
}

// Node tells what a daemon's node is; it is sent first in every session (ClientConfig.First).
type Node struct{ Addr netip.Addr }

// PodReport tells an event in the life of a pod on the daemon's node, as internal/runtime's PodReport says. It may be told
// several times; in each session all pods that are there are told anew, so it is not kept for the next one.
type PodReport struct {
	Event     uint8  // a runtime.PodEvent, 1-5
	Service   string // "namespace/name" of the service whose pod it is
	UID       string // the pod's UID, at most 64 bytes
	Name      string // its name, at most 253 bytes
	Container string // the container that it is about, at most 63 bytes; empty if none
	Addr      netip.Addr
	Netns     string // at most 255 bytes
	SpecHash  string // at most 64 bytes
	At        monotime.Time
	Code      uint32 // exit status
}

// PodUsage is what one pod uses of its node, all its containers together.
type PodUsage struct {
	Service netip.AddrPort
	PodID   uint64
	// CPU is the time of all cores together in nanoseconds, since the pod's start.
	CPU uint64
	// Memory is the working set in bytes.
	Memory uint64
	// At is when it was so.
	At monotime.Time
}

// Usage carries what pods of services with FlagUsage use.
type Usage struct{ Pods []PodUsage } // at most 20 a message

// PodLoad is how many open flows a pod has, by all edge nodes together.
type PodLoad struct {
	Service   netip.AddrPort
	PodID     uint64
	OpenFlows uint32
}

// Loads carries the open flows of pods: from their home node to the controller, and from there to all other nodes, which
// balance by them.
type Loads struct{ Pods []PodLoad } // at most MaxPodLoads a message

// Type implements Message.
func (*Sync) Type() Type      { return TypeSync }
func (*Wake) Type() Type      { return TypeWake }
func (*Refuse) Type() Type    { return TypeRefuse }
func (*Backends) Type() Type  { return TypeBackends }
func (*Listening) Type() Type { return TypeListening }
func (*Trace) Type() Type     { return TypeTrace }
func (*Stats) Type() Type     { return TypeStats }
func (*Idle) Type() Type      { return TypeIdle }
func (*Quiet) Type() Type     { return TypeQuiet }

// Type implements Message.
func (*Nodes) Type() Type { return TypeNodes }

// Type implements Message.
func (*Node) Type() Type { return TypeNode }

// Type implements Message.
func (*PodReport) Type() Type { return TypePodReport }

// Type implements Message.
func (*Usage) Type() Type { return TypeUsage }

// Type implements Message.
func (*Loads) Type() Type { return TypeLoads }
