// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"

	"wangell.loutres.me/internal/base/monotime"
)

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
