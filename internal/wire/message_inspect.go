// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Limits of the answers to Inspect.
const (
	MaxGateTables     = 32  // of GateState
	MaxGateCounters   = 255 // of GateState
	MaxGateInterfaces = 32  // of GateState
	MaxConnected      = 500 // pairs of Connected

	maxGateName = 63 // bytes of the name of a table, a counter, an interface or a mode

	connectedSize = ipSize + addrSize + 4 // bytes of a pair
)

// Inspect asks for the state of the gate of a daemon's node, or for the clients connected to the pods there. People
// look at the answer; nothing else depends on it, and a busy daemon may leave a question unanswered.
type Inspect struct {
	// Number is repeated in the answer.
	Number uint64
	// Most is the largest number of pairs in Connected, at most MaxConnected. With 0, the answer is GateState.
	Most uint16
}

// Type returns TypeInspect.
func (*Inspect) Type() Type { return TypeInspect }

func (m *Inspect) check() error {
	if m.Most > MaxConnected {
		return fmt.Errorf("%d pairs wanted, at most %d", m.Most, MaxConnected)
	}
	return nil
}

func (m *Inspect) append(b []byte) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(b, m.Number), m.Most)
}

func (m *Inspect) decode(d *decoder) { m.Number, m.Most = d.u64(), d.u16() }

// GateState is the state of a gate.
type GateState struct {
	Number     uint64 // of the Inspect that is answered
	Tables     []GateTable
	Counters   []GateCounter
	Interfaces []GateInterface
}

// Type returns TypeGateState.
func (*GateState) Type() Type { return TypeGateState }

func (m *GateState) check() error {
	if len(m.Tables) > MaxGateTables || len(m.Counters) > MaxGateCounters || len(m.Interfaces) > MaxGateInterfaces {
		return fmt.Errorf("%d tables, %d counters and %d interfaces, at most %d, %d and %d", len(m.Tables),
			len(m.Counters), len(m.Interfaces), MaxGateTables, MaxGateCounters, MaxGateInterfaces)
	}
	for _, t := range m.Tables {
		if err := checkGateName("table", t.Name); err != nil {
			return err
		}
	}
	for _, c := range m.Counters {
		if err := checkGateName("counter", c.Name); err != nil {
			return err
		}
	}
	for _, i := range m.Interfaces {
		if err := checkGateName("interface", i.Name); err != nil {
			return err
		}
		if err := checkGateName("mode of an interface", i.Mode); err != nil {
			return err
		}
	}
	return nil
}

func (m *GateState) append(b []byte) []byte {
	b = append(binary.BigEndian.AppendUint64(b, m.Number), byte(len(m.Tables)))
	for _, t := range m.Tables {
		b = binary.BigEndian.AppendUint64(appendText(b, t.Name), t.Used)
		b = binary.BigEndian.AppendUint64(b, t.Size)
	}
	b = append(b, byte(len(m.Counters)))
	for _, c := range m.Counters {
		b = binary.BigEndian.AppendUint64(appendText(b, c.Name), c.Value)
	}
	b = append(b, byte(len(m.Interfaces)))
	for _, i := range m.Interfaces {
		b = appendText(appendText(b, i.Name), i.Mode)
	}
	return b
}

func (m *GateState) decode(d *decoder) {
	m.Number = d.u64()
	if n := d.count(int(d.u8()), 1+8+8); n > 0 {
		m.Tables = make([]GateTable, n)
	}
	for i := range m.Tables {
		m.Tables[i] = GateTable{d.text(), d.u64(), d.u64()}
	}
	if n := d.count(int(d.u8()), 1+8); n > 0 {
		m.Counters = make([]GateCounter, n)
	}
	for i := range m.Counters {
		m.Counters[i] = GateCounter{d.text(), d.u64()}
	}
	if n := d.count(int(d.u8()), 1+1); n > 0 {
		m.Interfaces = make([]GateInterface, n)
	}
	for i := range m.Interfaces {
		m.Interfaces[i] = GateInterface{d.text(), d.text()}
	}
}

// GateTable is how full a table of a gate is, or the largest share of one.
type GateTable struct {
	Name       string // 1 to 63 bytes
	Used, Size uint64 // entries in use, and entries that there is room for
}

// GateCounter is the number of special packets of a kind.
type GateCounter struct {
	Name  string // 1 to 63 bytes
	Value uint64 // its count since the gate was attached
}

// GateInterface is an external interface with its XDP mode.
type GateInterface struct {
	Name string // of the network interface, 1 to 63 bytes
	Mode string // of XDP there, 1 to 63 bytes
}

// Connected lists the clients connected to the pods of a node.
type Connected struct {
	Number uint64 // of the Inspect that is answered
	// Pairs are those with the most connections.
	Pairs []ConnectedPair
	// Others is the number of connections of all other pairs.
	Others uint64
}

// Type returns TypeConnected.
func (*Connected) Type() Type { return TypeConnected }

func (m *Connected) check() error {
	if len(m.Pairs) > MaxConnected {
		return fmt.Errorf("%d pairs, at most %d", len(m.Pairs), MaxConnected)
	}
	for _, p := range m.Pairs {
		if err := checkService(p.Service); err != nil {
			return err
		}
		if err := checkIP("client", p.Client); err != nil {
			return err
		}
	}
	return nil
}

func (m *Connected) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, m.Number), m.Others)
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.Pairs)))
	for _, p := range m.Pairs {
		b = binary.BigEndian.AppendUint32(appendAddr(appendIP(b, p.Client), p.Service), p.Open)
	}
	return b
}

func (m *Connected) decode(d *decoder) {
	m.Number, m.Others = d.u64(), d.u64()
	if n := d.count(int(d.u16()), connectedSize); n > 0 {
		m.Pairs = make([]ConnectedPair, n)
	}
	for i := range m.Pairs {
		m.Pairs[i] = ConnectedPair{d.ip(), d.addr(), d.u32()}
	}
}

// ConnectedPair is the number of open connections of a client to a service.
type ConnectedPair struct {
	Client  netip.Addr     // the address of the client
	Service netip.AddrPort // the service address
	Open    uint32         // connections between both
}

func checkGateName(what, name string) error {
	if name == "" {
		return fmt.Errorf("%s: no name", what)
	}
	return checkString(what, name, maxGateName)
}
