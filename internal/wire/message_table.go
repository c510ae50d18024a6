// SPDX-License-Identifier: Apache-2.0

package wire

import "net/netip"

// Flags of a Service.
const (
	// FlagAnnounce makes one of the nodes answer ARP for the service address; internal/node chooses which. Without the
	// flag, packets are routed to the nodes by other means.
	FlagAnnounce uint8 = 1 << iota
	// FlagAffinity keeps a client address on the same pod (consistent hashing).
	FlagAffinity
	// FlagPreferLocal prefers pods on the edge node.
	FlagPreferLocal
	// FlagUsage makes the home nodes of the service's pods send Usage.
	FlagUsage
	// FlagProofAlways makes clients that wake the service prove where they are, whatever the node's budgets.
	FlagProofAlways
	// FlagProofNever drops what exceeds the node's budgets instead of asking for a proof.
	FlagProofNever
	// FlagSources drops SYNs of sources that Service.Sources do not allow.
	FlagSources
	// FlagRequests makes the edge node choose a pod for each request, as Service.Requests says.
	FlagRequests
)

// Service is an entry of the table of services.
type Service struct {
	// Addr is the service address, the key of the table.
	Addr netip.AddrPort
	// Name is "namespace/name", at most 317 bytes; used in logs only.
	Name string
	// IdleSeconds is the idle timeout.
	IdleSeconds uint32
	// FreezeSeconds is the time without a request to a program after which the pods may be frozen; 0 if they never
	// are. Daemons report such a service idle after this time; packets that the kernel answers by itself do not
	// count.
	FreezeSeconds uint32
	// MaxParked and MaxParkedPerSource limit the parked SYNs.
	MaxParked, MaxParkedPerSource uint16
	// Flags is a combination of the Flag constants.
	Flags uint8
	// Retries is the maximum number of further pods that a SYN is sent to after a pod refused it or did not answer.
	Retries uint8
	// Sources are the rules for clients, at most MaxSourceRules; empty without FlagSources.
	Sources Sources
	// Requests describes how requests are balanced; zero without FlagRequests.
	Requests Requests
}

// Protocol is the protocol of the clients of a service with FlagRequests.
type Protocol uint8

// The values of Requests.Protocol.
const (
	ProtocolAuto  Protocol = 0 // what their first bytes say
	ProtocolHTTP1 Protocol = 1
	ProtocolHTTP2 Protocol = 2 // with prior knowledge
	ProtocolTCP   Protocol = 3
)

// Requests describes how the requests of a service's clients are balanced.
type Requests struct {
	Protocol Protocol
	// Transparent makes pods see the addresses of their clients.
	Transparent bool
	// ClientIdleSeconds is how long a client may keep a connection without a request.
	ClientIdleSeconds uint32
	// MaxPerPod is the largest number of requests of a node to a pod at a time; 0 is no limit.
	MaxPerPod uint16
	// WarmupSeconds is the time in which the share of a new pod grows to that of the others; 0 is none.
	WarmupSeconds uint16
	// Traffic routes the requests to other services, the revisions of this one, which has no pods.
	Traffic Traffic
	// Leaving is set for a revision that is being removed: other services route no more requests to it.
	Leaving bool
}

// Sync is part of a step that turns version Base of the table of services into Version. Base 0 is the empty table. The
// step consists of Pieces messages and is applied when all of them have arrived. Server and Client create and apply
// Sync messages themselves; a Receive handler never gets one.
type Sync struct {
	Base, Version uint64
	// Hash is the hash of the table after the step: the sum, modulo 2^64, of the first 8 bytes of the SHA-256 of each
	// entry's encoding.
	Hash          uint64
	Piece, Pieces uint16
	Upserts       []Service
	Removals      []netip.AddrPort
}

// Moved says that the next step of the table gives a service another address: it removes From and adds To. Connections
// at From may go on for DrainMillis milliseconds. Without this message, or with another step, they end at once.
type Moved struct {
	From, To    netip.AddrPort
	DrainMillis uint32
}

// Type returns TypeSync.
func (*Sync) Type() Type { return TypeSync }

// Type returns TypeMoved.
func (*Moved) Type() Type { return TypeMoved }
