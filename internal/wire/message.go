// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
)

// Type identifies a message; it is the first byte of the message's encoding. docs/protocol/messages.md has all
// encodings.
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
	TypeAlert     Type = 24 // daemon → controller: a resource of its gate is scarce, or no longer is
	TypeDeaf      Type = 26 // daemon → controller: a pod that served has stopped listening
	TypeMoved     Type = 27 // controller → daemon: a service gets another address

	TypeImages       Type = 28 // controller → daemon: the images that its node should have
	TypeImageReports Type = 29 // daemon → controller: the states of these images
	TypeImagePulled  Type = 30 // daemon → controller: how much of an image is pulled

	TypeMirror  Type = 31 // daemon → controller: where its node shares blobs of images
	TypeBlobs   Type = 32 // daemon → controller: which blobs of a repository its node has
	TypeHolders Type = 33 // controller → daemon: the other nodes with pieces of a blob

	TypeAnswers Type = 34 // daemon → controller: requests of pods that came through its node

	TypeUnreadable Type = 35 // daemon → controller: files of a pod's image cannot be fetched
	TypeFreeze     Type = 36 // controller → daemon: the pods of a service to freeze
	TypeFrozen     Type = 37 // daemon → controller: a pod was frozen or thawed

	TypeCaller Type = 38 // daemon → controller: the trace of a request that has waited for a pod

	TypeInspect   Type = 39 // controller → daemon: a question about its node, for users
	TypeGateState Type = 40 // daemon → controller: the state of its gate
	TypeConnected Type = 41 // daemon → controller: the clients connected to the pods of its node

	TypeMemory Type = 42 // daemon → controller: its node, which has frozen pods, is short of memory

	TypeRepositories Type = 43 // controller → daemon: the repositories of images that its node may need

	TypePodLog  Type = 46 // daemon → controller: the end of the log of a container that has ended
	TypeSockets Type = 47 // daemon → controller: where a pod listens that clients do not reach
)

// String returns the type's name as docs/protocol spells it.
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
		TypeMemory:       "MEMORY",
		TypeRepositories: "REPOSITORIES",
		TypePodLog:       "POD_LOG",
		TypeSockets:      "SOCKETS",
	}
	if n, ok := names[t]; ok {
		return n
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// FromDaemon reports whether daemons send messages of a type, and controllers handle them.
func (t Type) FromDaemon() bool {
	switch t {
	case TypeWake, TypeListening, TypeUnready, TypeDeaf, TypeTrace, TypeStats, TypeIdle, TypeQuiet, TypeNode,
		TypePodReport, TypeUsage, TypeLoads, TypeTagReady, TypeDenied, TypeAlert, TypeImageReports,
		TypeImagePulled, TypeMirror, TypeBlobs, TypeAnswers, TypeUnreadable, TypeFrozen, TypeCaller,
		TypeGateState, TypeConnected, TypeMemory, TypePodLog, TypeSockets:
		return true
	}
	return false
}

// Types returns all types of messages, in the order of their numbers.
func Types() (all []Type) {
	for n := range math.MaxUint8 + 1 {
		if newMessage(Type(n)) != nil {
			all = append(all, Type(n))
		}
	}
	return all
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

// body is implemented by every message. Its methods handle the bytes after the type.
type body interface {
	Message
	// check rejects values outside the protocol's limits; it is called before sending and after receiving.
	check() error
	// append appends the encoding of a message that passed check.
	append(b []byte) []byte
	// decode reads the fields; the decoder keeps the first error.
	decode(d *decoder)
}

// newMessage returns an empty message of a type, or nil if the protocol has no such type.
func newMessage(t Type) body {
	switch t {
	case TypeSync:
		return &Sync{}
	case TypeWake:
		return &Wake{}
	case TypeRefuse:
		return &Refuse{}
	case TypeBackends:
		return &Backends{}
	case TypeListening:
		return &Listening{}
	case TypeTrace:
		return &Trace{}
	case TypeStats:
		return &Stats{}
	case TypeIdle:
		return &Idle{}
	case TypeQuiet:
		return &Quiet{}
	case TypeNodes:
		return &Nodes{}
	case TypeNodesTags:
		return &Nodes{WithTags: true}
	case TypeTagKeys:
		return &TagKeys{}
	case TypeTagReady:
		return &TagReady{}
	case TypeNode:
		return &Node{}
	case TypePodReport:
		return &PodReport{}
	case TypeUsage:
		return &Usage{}
	case TypeAnswers:
		return &Answers{}
	case TypeLoads:
		return &Loads{}
	case TypeUnready:
		return &Unready{}
	case TypeDenied:
		return &Denied{}
	case TypeCaller:
		return &Caller{}
	case TypeMoved:
		return &Moved{}
	case TypeAlert:
		return &Alert{}
	case TypeDeaf:
		return &Deaf{}
	case TypeImages:
		return &Images{}
	case TypeImageReports:
		return &ImageReports{}
	case TypeImagePulled:
		return &ImagePulled{}
	case TypeUnreadable:
		return &Unreadable{}
	case TypeMirror:
		return &Mirror{}
	case TypeBlobs:
		return &Blobs{}
	case TypeHolders:
		return &Holders{}
	case TypeFreeze:
		return &Freeze{}
	case TypeFrozen:
		return &Frozen{}
	case TypeInspect:
		return &Inspect{}
	case TypeGateState:
		return &GateState{}
	case TypeConnected:
		return &Connected{}
	case TypeMemory:
		return &Memory{}
	case TypeRepositories:
		return &Repositories{}
	case TypePodLog:
		return &PodLog{}
	case TypeSockets:
		return &Sockets{}
	}
	return nil
}

// encode returns the encoding of a message: its type, then its body.
func encode(m Message) ([]byte, error) {
	p, ok := m.(body)
	if !ok {
		return nil, fmt.Errorf("wire: %T is not a message of this protocol", m)
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("wire: %v: %w", m.Type(), err)
	}
	return p.append([]byte{byte(m.Type())}), nil
}

// decode reads one message that fills all of b. The message does not alias b.
func decode(b []byte) (Message, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("wire: empty message")
	}
	m := newMessage(Type(b[0]))
	if m == nil {
		return nil, fmt.Errorf("wire: unknown message %v", Type(b[0]))
	}
	d := decoder{b: b, at: 1}
	m.decode(&d)
	err := d.end()
	if err == nil {
		err = m.check()
	}
	if err != nil {
		return nil, fmt.Errorf("wire: %v: %w", m.Type(), err)
	}
	return m, nil
}

// Limits that several messages share, in bytes.
const (
	maxNode  = 253                    // a node's or a pod's name
	maxName  = maxNode + 1 + maxLabel // "namespace/name" of a service
	maxNetns = 255                    // path of a network namespace

	maxLabel = 63 // a namespace's or a container's name
)

// MaxReason is the most bytes that a reason or the answer of a probe may have.
const MaxReason = 200

// maxPods is the most pods of a BACKENDS.
const maxPods = 64
