// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"net/netip"

	"wangell.loutres.me/internal/monotime"
)

// Type identifies a message; it is the first byte of the message's encoding. docs/protocol.md specifies the encodings.
type Type uint8

// The message types, with the direction in which each is sent.
const (
	TypeSync      Type = 3  // controller → daemon: part of the table of services
	TypeWake      Type = 4  // daemon → controller: SYNs are parked at a cold service
	TypeRefuse    Type = 5  // controller → daemon: the wake failed; answer the parked clients with RST
	TypeBackends  Type = 6  // controller → daemon: the pods of a service
	TypeListening Type = 7  // daemon → controller: a pod's socket listens
	TypeTrace     Type = 8  // daemon → controller: times of a wake that only the gate observes
	TypeStats     Type = 9  // daemon → controller: counters of pods
	TypeIdle      Type = 10 // daemon → controller: a service had no packet for its idle timeout
	TypeQuiet     Type = 13 // daemon → controller: last packet and open flows of a draining pod
	TypeNodes     Type = 14 // controller → daemon: the nodes that have a connected daemon
	TypeNode      Type = 15 // daemon → controller: the address of its node
	TypePodReport Type = 16 // daemon → controller: an event of a pod on its node
	TypeUsage     Type = 17 // daemon → controller: CPU time and memory of pods on its node
	TypeLoads     Type = 18 // daemon → controller → other daemons: open flows of pods
	TypeTagReady  Type = 19 // daemon → controller: the keys of tags that its gate has
	TypeTagKeys   Type = 20 // controller → daemon: the keys of tags of encapsulated packets
	TypeNodesTags Type = 21 // controller → daemon: like TypeNodes, with the nodes that tag packets
	TypeUnready   Type = 22 // daemon → controller: a pod listens, but its readinessProbe does not succeed
	TypeDenied    Type = 23 // daemon → controller: a service refused a client by its address
	TypeAlert     Type = 24 // daemon → controller: something of its gate is scarce, or no more
	TypeDeaf      Type = 26 // daemon → controller: a pod that served does not listen any more
	TypeMoved     Type = 27 // controller → daemon: a service gets another address

	TypeImages       Type = 28 // controller → daemon: the images that its node is to have
	TypeImageReports Type = 29 // daemon → controller: the states of these images
	TypeImagePulled  Type = 30 // daemon → controller: how much of an image is pulled

	TypeMirror  Type = 31 // daemon → controller: where its node shares blobs of images
	TypeBlobs   Type = 32 // daemon → controller: which blobs of a repository its node has
	TypeHolders Type = 33 // controller → daemon: who else has pieces of a blob

	TypeAnswers Type = 34 // daemon → controller: requests of pods that came through its node

	TypeUnreadable Type = 35 // daemon → controller: files of a pod's image cannot be had
	TypeFreeze     Type = 36 // controller → daemon: which pods of a service are to be frozen
	TypeFrozen     Type = 37 // daemon → controller: a pod was frozen or thawed

	TypeCaller Type = 38 // daemon → controller: the trace of a request that has waited for a pod

	TypeInspect   Type = 39 // controller → daemon: what people want to see of its node
	TypeGateState Type = 40 // daemon → controller: the state of its gate
	TypeConnected Type = 41 // daemon → controller: who is connected to the pods of its node

	TypeMemory Type = 42 // daemon → controller: its node, which has frozen pods, is short of memory
)

// String returns the type's name as docs/protocol.md spells it.
func (t Type) String() string {
	names := map[Type]string{
		TypeSync: "SYNC", TypeWake: "WAKE", TypeRefuse: "REFUSE", TypeBackends: "BACKENDS",
		TypeListening: "LISTENING", TypeTrace: "TRACE", TypeStats: "STATS", TypeIdle: "IDLE", TypeQuiet: "QUIET",
		TypeNodes: "NODES", TypeNode: "NODE", TypePodReport: "POD_REPORT", TypeUsage: "USAGE", TypeLoads: "LOADS",
		TypeTagReady: "TAG_READY", TypeTagKeys: "TAG_KEYS", TypeNodesTags: "NODES_TAGS",
		TypeUnready: "UNREADY",
		TypeDenied:  "DENIED",
		TypeAlert:   "ALERT",
		TypeDeaf:    "DEAF",
		TypeMoved:   "MOVED",
		TypeImages:  "IMAGES", TypeImageReports: "IMAGE_REPORTS", TypeImagePulled: "IMAGE_PULLED",
		TypeMirror: "MIRROR", TypeBlobs: "BLOBS", TypeHolders: "HOLDERS",
		TypeAnswers:    "ANSWERS",
		TypeUnreadable: "UNREADABLE",
		TypeFreeze:     "FREEZE", TypeFrozen: "FROZEN",
		TypeCaller:  "CALLER",
		TypeInspect: "INSPECT", TypeGateState: "GATE_STATE", TypeConnected: "CONNECTED",
		TypeMemory: "MEMORY",
	}
	if n, ok := names[t]; ok {
		return n
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Message is a pointer to one of the message structs of this package.
type Message interface{ Type() Type }

// reliable reports whether messages of a type are repeated until they are acknowledged. The others are superseded by
// the next message of their type, so a lost one does no harm.
func reliable(t Type) bool {
	return t != TypeStats && t != TypeUsage && t != TypeLoads && t != TypeImagePulled &&
		t != TypeAnswers && t != TypeMemory
}

// sessionScoped reports whether messages of a type are meaningful in one session only. They are not kept for the next
// session, at whose start the daemon sends the present state again.
func sessionScoped(t Type) bool {
	return t == TypeNode || t == TypePodReport || t == TypeTagReady || t == TypeAlert ||
		t == TypeImageReports || t == TypeMirror || t == TypeBlobs || t == TypeGateState || t == TypeConnected
}

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
	// FreezeSeconds is the time without a request to a program after which the pods may be frozen; 0 if they are not. It
	// is the idle timeout of such a service as far as daemons report idleness: what a kernel answers for a program does
	// not count.
	FreezeSeconds uint32
	// MaxParked and MaxParkedPerSource limit the parked SYNs.
	MaxParked, MaxParkedPerSource uint16
	// Flags is a combination of the Flag constants.
	Flags uint8
	// Retries is the maximum number of further pods that a SYN is sent to after a pod refused it or did not answer.
	Retries uint8
	// Sources are the rules for clients, at most MaxSourceRules; empty without FlagSources.
	Sources Sources
	// Requests says how requests are balanced; zero without FlagRequests.
	Requests Requests
}

// Protocol is what the clients of a service with FlagRequests speak.
type Protocol uint8

// The values of Requests.Protocol.
const (
	ProtocolAuto  Protocol = 0 // what their first bytes say
	ProtocolHTTP1 Protocol = 1
	ProtocolHTTP2 Protocol = 2 // with prior knowledge
	ProtocolTCP   Protocol = 3
)

// Requests says how the requests of a service's clients are balanced.
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
	// Traffic leads the requests to other services, the revisions of this one, which has no pods.
	Traffic Traffic
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

// Moved says that the next step of the table gives a service another address: it removes From and adds To. Connections
// at From may go on for DrainMillis milliseconds. Without this message, or with another step, they end at once.
type Moved struct {
	From, To    netip.AddrPort
	DrainMillis uint32
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

// PodStats holds the counters of one pod since its start.
type PodStats struct {
	Service    netip.AddrPort
	PodID      uint64
	OpenFlows  uint32
	NewFlows   uint64
	BytesIn    uint64 // client to pod, sum of the IP total lengths
	BytesOut   uint64 // pod to client, sum of the IP total lengths
	LastPacket monotime.Time
}

// Stats carries the counters of pods that changed.
type Stats struct{ Pods []PodStats } // at most MaxPodStats per message

// Idle reports that a service had no packet for its idle timeout.
type Idle struct {
	Service    netip.AddrPort
	LastPacket monotime.Time
}

// Quiet answers a Backends message that drains a pod, once the gate gives the pod no new flow.
type Quiet struct {
	Service    netip.AddrPort
	PodID      uint64
	Generation uint64 // of the Backends message that it answers
	LastPacket monotime.Time
	OpenFlows  uint32
}

// NodeInfo describes a node to the other nodes.
type NodeInfo struct {
	Name string     // at most 253 bytes
	Addr netip.Addr // source and destination of its encapsulated packets
	// Tags says that the node opens tagged packets, and tags those that it sends to nodes that do.
	Tags bool
}

// Nodes is part of the list of nodes that have a connected daemon; NewNodes splits the list. All Pieces of a Generation
// together are the list. Daemons ignore a message with an older Generation. Generations are counted per session.
type Nodes struct {
	// WithTags says that the message carries NodeInfo.Tags. Without it, the message has the format of daemons without
	// support for tags.
	WithTags      bool
	Generation    uint64
	Piece, Pieces uint16
	Nodes         []NodeInfo // at most 32 per message, each node once
}

// TagKeySize is the size of a key of tags in bytes.
const TagKeySize = 16

// TagKeys are the keys of the tags of encapsulated packets that are valid: those with the numbers First and First+1.
// They are sent to daemons that have sent TagReady, and again whenever they change.
type TagKeys struct {
	First uint64
	Keys  [2][TagKeySize]byte
	// Second says that packets are tagged with the second key; otherwise with the first.
	Second bool
}

// TagReady reports that the gate of the daemon's node has the keys from First on; 0 if it has none yet. It is sent
// before Node, and again in answer to TagKeys.
type TagReady struct{ First uint64 }

// Node reports the address of the daemon's node. It is the first message of every session but for TagReady
// (ClientConfig.First).
type Node struct{ Addr netip.Addr }

// PodReport is an event in the life of a pod on the daemon's node; see PodReport of internal/runtime. An event may be
// reported several times. Each session begins with reports of all pods on the node.
type PodReport struct {
	Event     uint8  // a runtime.PodEvent, 1 to 5
	Service   string // "namespace/name" of the pod's service
	UID       string // the pod's UID, at most 64 bytes
	Name      string // the pod's name, at most 253 bytes
	Container string // the container concerned, at most 63 bytes; empty for events of the pod's network
	Addr      netip.Addr
	Netns     string // at most 255 bytes
	SpecHash  string // at most 64 bytes
	At        monotime.Time
	Code      uint32 // exit status; 128+n for signal n
}

// PodUsage is the CPU time and memory that all containers of a pod use together.
type PodUsage struct {
	Service netip.AddrPort
	PodID   uint64
	// CPU is the time of all cores since the pod's start, in nanoseconds.
	CPU uint64
	// Memory is the working set in bytes.
	Memory uint64
	// At is when the values were measured.
	At monotime.Time
}

// Usage carries the usage of pods whose service has FlagUsage.
type Usage struct{ Pods []PodUsage } // at most MaxPodUsage per message

// Classes is the number of classes of answers: 1 to 5 are those of HTTP status codes, 0 is for requests that got none.
const Classes = 6

// PodAnswers are the requests that came through a node to a pod, since the node's daemon started.
type PodAnswers struct {
	Service netip.AddrPort
	// PodID is 0 for requests of the service that have no pod: they wait, or no pod has answered them.
	PodID uint64
	// Open is the number of requests that are not answered yet.
	Open uint32
	// Started is the number of requests that the pod was given.
	Started uint64
	// Answered is the number of requests that have ended, by class.
	Answered [Classes]uint64
}

// Answers carries the requests of pods whose service has FlagRequests, if they changed.
type Answers struct {
	At   monotime.Time // when they were counted
	Pods []PodAnswers  // at most MaxPodAnswers
}

// PodLoad is the number of a pod's open flows, from all edge nodes together.
type PodLoad struct {
	Service   netip.AddrPort
	PodID     uint64
	OpenFlows uint32
}

// Loads carries the open flows of pods from their home node to the controller, which forwards them to the other nodes
// for load balancing.
type Loads struct{ Pods []PodLoad } // at most MaxPodLoads per message

// Denied reports that the rules of a service refused a client, at most once a minute for each service and daemon.
type Denied struct {
	Service netip.AddrPort
	// Total is the number of SYNs that this daemon's gate has refused since it got the service.
	Total uint64
	// Source is the client.
	Source netip.Addr
}

// Caller reports the span of a client whose request has waited for a pod of a service and gets one, as its header
// traceparent has it (W3C Trace Context, level 1).
type Caller struct {
	Service netip.AddrPort
	TraceID [16]byte // not zero
	SpanID  [8]byte  // not zero
	Flags   uint8    // 1: the client records the span
}

// Type returns TypeCaller.
func (*Caller) Type() Type { return TypeCaller }

// Type returns TypeDenied.
func (*Denied) Type() Type { return TypeDenied }

// Type returns TypeSync.
func (*Sync) Type() Type { return TypeSync }

// Type returns TypeWake.
func (*Wake) Type() Type { return TypeWake }

// Type returns TypeMoved.
func (*Moved) Type() Type { return TypeMoved }

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

// Type returns TypeStats.
func (*Stats) Type() Type { return TypeStats }

// Type returns TypeIdle.
func (*Idle) Type() Type { return TypeIdle }

// Type returns TypeQuiet.
func (*Quiet) Type() Type { return TypeQuiet }

// Type returns TypeNodesTags for a message with tags, otherwise TypeNodes.
func (m *Nodes) Type() Type {
	if m.WithTags {
		return TypeNodesTags
	}
	return TypeNodes
}

// Type returns TypeTagKeys.
func (*TagKeys) Type() Type { return TypeTagKeys }

// Type returns TypeTagReady.
func (*TagReady) Type() Type { return TypeTagReady }

// Type returns TypeNode.
func (*Node) Type() Type { return TypeNode }

// Type returns TypePodReport.
func (*PodReport) Type() Type { return TypePodReport }

// Type returns TypeAnswers.
func (*Answers) Type() Type { return TypeAnswers }

// Type returns TypeUsage.
func (*Usage) Type() Type { return TypeUsage }

// Type returns TypeLoads.
func (*Loads) Type() Type { return TypeLoads }
