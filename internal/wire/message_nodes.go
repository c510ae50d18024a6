// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"wangell.loutres.me/internal/base/monotime"
)

const (
	maxNodes    = 32         // nodes of a NODES
	nodeFixed   = ipSize + 1 // bytes of a node without its name
	maxUID      = 64         // bytes
	maxSpecHash = 64         // bytes
	maxPodEvent = 5          // runtime.PodNetworkGone

	flagTags   = 1 // of a node: NodeInfo.Tags
	flagSecond = 1 // of TagKeys: Second
)

// NodeInfo describes a node to the other nodes.
type NodeInfo struct {
	Name string     // at most 253 bytes
	Addr netip.Addr // source and destination of its encapsulated packets
	// Tags says that the node opens tagged packets, and tags those that it sends to nodes that do.
	Tags bool
}

// NewNodes splits a list of nodes into messages, with or without their tags. An empty list is one
// message.
func NewNodes(generation uint64, nodes []NodeInfo, withTags bool) []*Nodes {
	pieces := max(1, (len(nodes)+maxNodes-1)/maxNodes)
	out := make([]*Nodes, pieces)
	for i := range out {
		out[i] = &Nodes{
			WithTags: withTags, Generation: generation, Piece: uint16(i), Pieces: uint16(pieces),
			Nodes: nodes[min(i*maxNodes, len(nodes)):min((i+1)*maxNodes, len(nodes))],
		}
	}
	return out
}

// Nodes is part of the list of nodes that have a connected daemon; NewNodes splits the list. All Pieces of a Generation
// together are the list. Daemons ignore a message with an older Generation. Generations are counted per session.
type Nodes struct {
	// WithTags says that the message carries NodeInfo.Tags. Without it, the message has the format of daemons without
	// support for tags.
	WithTags      bool
	Generation    uint64     // the version of the set, which grows
	Piece, Pieces uint16     // number of this message, from 0, and of all messages of the set
	Nodes         []NodeInfo // at most 32 per message, each node once
}

// Type returns TypeNodesTags for a message with tags, otherwise TypeNodes.
func (m *Nodes) Type() Type {
	if m.WithTags {
		return TypeNodesTags
	}
	return TypeNodes
}

func (m *Nodes) check() error {
	if m.Piece >= m.Pieces {
		return fmt.Errorf("piece %d of %d", m.Piece, m.Pieces)
	}
	if len(m.Nodes) > maxNodes {
		return fmt.Errorf("%d nodes, at most %d per message", len(m.Nodes), maxNodes)
	}
	for i := range m.Nodes {
		n := &m.Nodes[i]
		if n.Name == "" {
			return fmt.Errorf("a node without a name")
		}
		if err := checkString("node", n.Name, maxNode); err != nil {
			return err
		}
		if err := checkIP("node "+n.Name, n.Addr); err != nil {
			return err
		}
	}
	return nil
}

func (m *Nodes) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, m.Generation)
	b = binary.BigEndian.AppendUint16(b, m.Piece)
	b = binary.BigEndian.AppendUint16(b, m.Pieces)
	b = append(b, byte(len(m.Nodes)))
	for _, n := range m.Nodes {
		b = appendText(appendIP(b, n.Addr), n.Name)
		if m.WithTags {
			b = appendFlag(b, n.Tags, flagTags)
		}
	}
	return b
}

func (m *Nodes) decode(d *decoder) {
	m.Generation, m.Piece, m.Pieces = d.u64(), d.u16(), d.u16()
	if n := d.count(int(d.u8()), nodeFixed); n > 0 {
		m.Nodes = make([]NodeInfo, n)
	}
	for i := range m.Nodes {
		m.Nodes[i].Addr = d.ip()
		m.Nodes[i].Name = d.text()
		if m.WithTags {
			m.Nodes[i].Tags = d.flag(flagTags)
		}
	}
}

// TagKeySize is the size of a key of tags in bytes.
const TagKeySize = 16

// TagKeys are the keys of the tags of encapsulated packets that are valid: those with the numbers First and First+1.
// They are sent to daemons that have sent TagReady, and again whenever they change.
type TagKeys struct {
	First uint64              // number of the first key
	Keys  [2][TagKeySize]byte // the two keys
	// Second says that packets are tagged with the second key; otherwise with the first.
	Second bool
}

// Type returns TypeTagKeys.
func (*TagKeys) Type() Type { return TypeTagKeys }

func (m *TagKeys) check() error {
	if m.First == 0 || m.First == math.MaxUint64 {
		return fmt.Errorf("keys from number %d on", m.First)
	}
	return nil
}

func (m *TagKeys) append(b []byte) []byte {
	b = appendFlag(binary.BigEndian.AppendUint64(b, m.First), m.Second, flagSecond)
	return append(append(b, m.Keys[0][:]...), m.Keys[1][:]...)
}

func (m *TagKeys) decode(d *decoder) {
	m.First, m.Second = d.u64(), d.flag(flagSecond)
	for i := range m.Keys {
		copy(m.Keys[i][:], d.take(TagKeySize))
	}
}

// TagReady reports that the gate of the daemon's node has the keys from First on; 0 if it has none yet. It is sent
// before Node, and again in answer to TagKeys.
type TagReady struct {
	First uint64 // number of the first key that the gate has; 0 if it has none
}

// Type returns TypeTagReady.
func (*TagReady) Type() Type { return TypeTagReady }

func (m *TagReady) check() error { return nil }

func (m *TagReady) append(b []byte) []byte { return binary.BigEndian.AppendUint64(b, m.First) }

func (m *TagReady) decode(d *decoder) { m.First = d.u64() }

// Node reports the address of the daemon's node. It is the first message of every session but for TagReady
// (ClientConfig.First).
type Node struct {
	Addr netip.Addr // at which it accepts encapsulated packets
}

// Type returns TypeNode.
func (*Node) Type() Type { return TypeNode }

func (m *Node) check() error { return checkIP("node", m.Addr) }

func (m *Node) append(b []byte) []byte { return appendIP(b, m.Addr) }

func (m *Node) decode(d *decoder) { m.Addr = d.ip() }

// PodReport is an event in the life of a pod on the daemon's node; see PodReport of internal/runtime. An event may be
// reported several times. Each session begins with reports of all pods on the node.
type PodReport struct {
	Event     uint8         // a runtime.PodEvent, 1 to 5
	Service   string        // "namespace/name" of the pod's service
	UID       string        // the pod's UID, at most 64 bytes
	Name      string        // the pod's name, at most 253 bytes
	Container string        // the container concerned, at most 63 bytes; empty for events of the pod's network
	Addr      netip.Addr    // the pod's address; zero if it is not known
	Netns     string        // path of its network namespace, at most 255 bytes
	SpecHash  string        // hash of the spec that it was made from, at most 64 bytes
	At        monotime.Time // when it happened
	Code      uint32        // exit status; 128+n for signal n
}

// Type returns TypePodReport.
func (*PodReport) Type() Type { return TypePodReport }

func (m *PodReport) check() error {
	if m.Event < 1 || m.Event > maxPodEvent {
		return fmt.Errorf("unknown pod event %d", m.Event)
	}
	for _, s := range []struct {
		what, text string
		limit      int
	}{
		{"service", m.Service, maxName}, {"UID", m.UID, maxUID}, {"name", m.Name, maxNode},
		{"container", m.Container, maxLabel}, {"netns", m.Netns, maxNetns}, {"spec hash", m.SpecHash, maxSpecHash},
	} {
		if err := checkString(s.what, s.text, s.limit); err != nil {
			return err
		}
	}
	if m.Service == "" || m.UID == "" {
		return fmt.Errorf("a pod without service or UID")
	}
	if m.Addr.IsValid() {
		if err := checkIP("pod", m.Addr); err != nil {
			return err
		}
	}
	return checkTimes(m.At)
}

func (m *PodReport) append(b []byte) []byte {
	b = appendName(append(b, m.Event), m.Service)
	b = appendText(appendText(appendText(b, m.UID), m.Name), m.Container)
	b = appendIP(b, m.Addr)
	b = appendText(appendText(b, m.Netns), m.SpecHash)
	return binary.BigEndian.AppendUint32(appendTime(b, m.At), m.Code)
}

func (m *PodReport) decode(d *decoder) {
	m.Event, m.Service = d.u8(), d.name()
	m.UID, m.Name, m.Container = d.text(), d.text(), d.text()
	m.Addr = d.ip()
	m.Netns, m.SpecHash = d.text(), d.text()
	m.At, m.Code = d.time(), d.u32()
}

func (m *PodReport) times(f func(*monotime.Time)) { f(&m.At) }

// MaxPodLog is the size in bytes of the text of a PodLog: runtime.MaxPodLog.
const MaxPodLog = 16 << 10

// PodLog is the end of what a container of a pod on the daemon's node has written, read when the container ended. It
// may be sent again, with more.
type PodLog struct {
	UID       string // the pod's UID, at most 64 bytes
	Container string // the container's name, at most 63 bytes
	Text      string // at most MaxPodLog bytes; empty if the container has written nothing
}

// Type returns TypePodLog.
func (*PodLog) Type() Type { return TypePodLog }

func (m *PodLog) check() error {
	if m.UID == "" {
		return fmt.Errorf("a pod without UID")
	}
	return errors.Join(checkString("UID", m.UID, maxUID), checkString("container", m.Container, maxLabel),
		checkString("log", m.Text, MaxPodLog))
}

func (m *PodLog) append(b []byte) []byte {
	return appendName(appendText(appendText(b, m.UID), m.Container), m.Text)
}

func (m *PodLog) decode(d *decoder) { m.UID, m.Container, m.Text = d.text(), d.text(), d.name() }

// appendFlag appends a byte of flags with one that is known.
func appendFlag(b []byte, set bool, flag byte) []byte {
	if !set {
		flag = 0
	}
	return append(b, flag)
}
