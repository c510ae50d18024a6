// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"math"
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

// appendFlag appends a byte of flags with one that is known.
func appendFlag(b []byte, set bool, flag byte) []byte {
	if !set {
		flag = 0
	}
	return append(b, flag)
}

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

func (m *TagReady) check() error { return nil }

func (m *TagReady) append(b []byte) []byte { return binary.BigEndian.AppendUint64(b, m.First) }

func (m *TagReady) decode(d *decoder) { m.First = d.u64() }

func (m *Node) check() error { return checkIP("node", m.Addr) }

func (m *Node) append(b []byte) []byte { return appendIP(b, m.Addr) }

func (m *Node) decode(d *decoder) { m.Addr = d.ip() }

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
