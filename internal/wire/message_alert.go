// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// AlertKind says what is scarce.
type AlertKind uint8

// The kinds of alerts: budgets of wakes that clients exceed, then tables of the gate, or shares of one, that are almost
// full.
const (
	AlertNodeWakes    AlertKind = 1 // wakes on the node
	AlertServiceWakes AlertKind = 2 // wakes of the service
	AlertSourceWakes  AlertKind = 3 // wakes by the clients of a prefix
	AlertProvenWakes  AlertKind = 4 // wakes by the clients of a prefix that have proven where they are

	AlertServices     AlertKind = 5  // services
	AlertPods         AlertKind = 6  // pods of all nodes
	AlertParked       AlertKind = 7  // parked SYNs
	AlertFlows        AlertKind = 8  // connections
	AlertSourceFlows  AlertKind = 9  // connections of one client address
	AlertServiceFlows AlertKind = 10 // connections of one service
	AlertSourceRules  AlertKind = 11 // rules for the sources of services
)

var alertNames = map[AlertKind]string{
	AlertNodeWakes: "wakes_node", AlertServiceWakes: "wakes_service", AlertSourceWakes: "wakes_source",
	AlertProvenWakes: "wakes_proven", AlertServices: "services", AlertPods: "pods", AlertParked: "parked",
	AlertFlows: "flows", AlertSourceFlows: "flows_per_source", AlertServiceFlows: "flows_per_service",
	AlertSourceRules: "source_rules",
}

// AlertKinds returns all kinds.
func AlertKinds() []AlertKind { return slices.Sorted(maps.Keys(alertNames)) }

// String returns the name of the budget or table, as in metrics.
func (k AlertKind) String() string {
	if n, ok := alertNames[k]; ok {
		return n
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// OfWakes reports whether an alert is about a budget of wakes rather than a table.
func (k AlertKind) OfWakes() bool { return k <= AlertProvenWakes }

// Alert reports that a resource of the daemon's gate has become scarce, or no longer is. Each session begins with the
// alerts in force.
type Alert struct {
	Kind AlertKind // what is scarce
	// Over is set if the resource is no longer scarce; the other fields are those of the last alert.
	Over bool
	// Service is the service whose SYN last exceeded the budget of wakes, or, with AlertServiceFlows, that with the most
	// connections. Otherwise it is zero.
	Service netip.AddrPort
	// Source is the /24 of the client that last exceeded the budget of wakes, or, with AlertSourceFlows, the address with
	// the most connections. Otherwise it is zero.
	Source netip.Prefix
	// Used of Size entries of the table are in use. Both are 0 for a budget of wakes.
	Used, Size uint32
}

// Type returns TypeAlert.
func (*Alert) Type() Type { return TypeAlert }

func (m *Alert) check() error {
	if _, ok := alertNames[m.Kind]; !ok {
		return fmt.Errorf("unknown kind %d", m.Kind)
	}
	if m.Kind.OfWakes() || m.Kind == AlertServiceFlows {
		if err := checkService(m.Service); err != nil {
			return err
		}
	} else if m.Service != (netip.AddrPort{}) {
		return fmt.Errorf("service of an alert about %v", m.Kind)
	}
	if m.Kind.OfWakes() || m.Kind == AlertSourceFlows {
		if err := checkPrefix("source", m.Source); err != nil {
			return err
		}
	} else if m.Source != (netip.Prefix{}) {
		return fmt.Errorf("source of an alert about %v", m.Kind)
	}
	if m.Kind.OfWakes() != (m.Size == 0) || m.Kind.OfWakes() && m.Used != 0 {
		return fmt.Errorf("%d of %d entries of %v", m.Used, m.Size, m.Kind)
	}
	return nil
}

func (m *Alert) append(b []byte) []byte {
	over := byte(0)
	if m.Over {
		over = 1
	}
	b = appendPrefix(appendAddr(append(b, byte(m.Kind), over), m.Service), m.Source)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, m.Used), m.Size)
}

func (m *Alert) decode(d *decoder) {
	m.Kind, m.Over, m.Service, m.Source = AlertKind(d.u8()), d.flag(1), d.addr(), d.prefix()
	m.Used, m.Size = d.u32(), d.u32()
}

// Memory reports that the daemon's node, which has frozen pods, is short of memory. It is sent every second while that
// lasts.
type Memory struct {
	// Available is how many bytes programs could get without swapping (MemAvailable in proc_meminfo(5)), of Total.
	Available, Total uint64
}

// Type returns TypeMemory.
func (*Memory) Type() Type { return TypeMemory }

func (m *Memory) check() error {
	if m.Available > m.Total {
		return fmt.Errorf("%d bytes available of %d", m.Available, m.Total)
	}
	return nil
}

func (m *Memory) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, m.Available), m.Total)
}

func (m *Memory) decode(d *decoder) { m.Available, m.Total = d.u64(), d.u64() }
