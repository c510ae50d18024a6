// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

const (
	maxServices = 100_000 // entries of the table

	serviceFixed = addrSize + 4 + 2 + 2 + 1 + 1 + 2 // bytes of an entry without its name
	idleFreezes  = 1 << 31                          // bit of the idle timeout: the entry has FreezeSeconds
	idlePorts    = 1 << 30                          // bit of the idle timeout: the entry has Ports
	showsClients = 0x40                             // bit of the protocol of Requests: Transparent
	leaves       = 0x20                             // bit of the protocol of Requests: Leaving
	// trustsProxies is the bit of the protocol of Requests for TrustedProxies, which follow.
	trustsProxies = 0x10
	requestsSize  = 1 + 4 + 2 + 2 // bytes of Requests without Traffic
	maxTable      = 36_000_000    // bytes of all entries, so that 65,535 pieces suffice
	syncHeader    = 1 + 3*8 + 4*2 // bytes of a SYNC without its entries
)

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
	// Ports are the further ports of the service, at most MaxFurtherPorts, at the same address. The service address
	// names all of them in messages about the service; that of one of its ports names this one.
	Ports Ports
}

func (s *Service) check() error {
	if err := checkAddr("service", s.Addr); err != nil {
		return err
	}
	if err := checkString("name", s.Name, maxName); err != nil {
		return fmt.Errorf("service %s: %w", s.Addr, err)
	}
	if s.Flags&FlagSources == 0 && s.Sources != (Sources{}) {
		return fmt.Errorf("service %s: rules for sources without their flag", s.Addr)
	}
	if err := s.Sources.check(); err != nil {
		return fmt.Errorf("service %s: %w", s.Addr, err)
	}
	if s.Flags&FlagRequests == 0 && s.Requests != (Requests{}) {
		return fmt.Errorf("service %s: rules for requests without their flag", s.Addr)
	}
	if s.IdleSeconds >= idlePorts {
		return fmt.Errorf("service %s: an idle timeout of %d s, less than %d can be", s.Addr, s.IdleSeconds, idlePorts)
	}
	if err := s.Ports.check(s.Addr.Port()); err != nil {
		return fmt.Errorf("service %s: %w", s.Addr, err)
	}
	if s.Requests.Protocol > ProtocolTCP {
		return fmt.Errorf("service %s: unknown protocol %d", s.Addr, s.Requests.Protocol)
	}
	if n := s.Requests.TrustedProxies.Len(); n > MaxTrustedProxies {
		return fmt.Errorf("service %s: %d networks of trusted proxies, at most %d", s.Addr, n, MaxTrustedProxies)
	}
	if err := s.Requests.TrustedProxies.check(); err != nil {
		return fmt.Errorf("service %s: trusted proxies: %w", s.Addr, err)
	}
	if err := s.Requests.Traffic.check(); err != nil {
		return fmt.Errorf("service %s: %w", s.Addr, err)
	}
	return nil
}

// append appends the entry's encoding, which is also the input of the table's hash.
func (s *Service) append(b []byte) []byte {
	b = appendAddr(b, s.Addr)
	idle := s.IdleSeconds
	if s.FreezeSeconds > 0 {
		idle |= idleFreezes
	}
	if !s.Ports.Empty() {
		idle |= idlePorts
	}
	b = binary.BigEndian.AppendUint32(b, idle)
	b = binary.BigEndian.AppendUint16(b, s.MaxParked)
	b = binary.BigEndian.AppendUint16(b, s.MaxParkedPerSource)
	b = append(b, s.Flags, s.Retries)
	b = appendName(b, s.Name)
	if s.Flags&FlagSources != 0 {
		b = s.Sources.append(b)
	}
	if s.Flags&FlagRequests != 0 {
		b = s.Requests.append(b)
	}
	if s.FreezeSeconds > 0 {
		b = binary.BigEndian.AppendUint32(b, s.FreezeSeconds)
	}
	if !s.Ports.Empty() {
		b = s.Ports.append(b)
	}
	return b
}

func (s *Service) decode(d *decoder) {
	s.Addr = d.addr()
	idle := d.u32() // bit idleFreezes: FreezeSeconds follows; bit idlePorts: Ports follow
	s.IdleSeconds = idle &^ (idleFreezes | idlePorts)
	s.MaxParked = d.u16()
	s.MaxParkedPerSource = d.u16()
	s.Flags, s.Retries = d.u8(), d.u8()
	s.Name = d.name()
	if s.Flags&FlagSources != 0 {
		s.Sources.decode(d)
	}
	if s.Flags&FlagRequests != 0 {
		s.Requests.decode(d)
	}
	if idle&idleFreezes != 0 {
		if s.FreezeSeconds = d.u32(); s.FreezeSeconds == 0 {
			d.fail("pods are frozen after 0 s: the field is left out for that")
		}
	}
	if idle&idlePorts != 0 {
		s.Ports.decode(d)
	}
}

// size returns the length of the entry's encoding.
func (s *Service) size() int {
	n := serviceFixed + len(s.Name)
	if s.Flags&FlagSources != 0 {
		n += 2 + len(s.Sources.encoded)
	}
	if s.Flags&FlagRequests != 0 {
		n += requestsSize + len(s.Requests.Traffic.encoded)
	}
	if s.FreezeSeconds > 0 {
		n += 4
	}
	if !s.Ports.Empty() {
		n += len(s.Ports.encoded)
	}
	return n
}

// Protocol is the protocol of the clients of a service with FlagRequests.
type Protocol uint8

// The values of Requests.Protocol.
const (
	ProtocolAuto  Protocol = 0 // what their first bytes say
	ProtocolHTTP1 Protocol = 1 // HTTP/1.1
	ProtocolHTTP2 Protocol = 2 // with prior knowledge
	ProtocolTCP   Protocol = 3 // anything else: connections are balanced
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
	// TrustedProxies are the networks, at most MaxTrustedProxies allowed prefixes, of proxies whose X-Forwarded-* and
	// Forwarded headers are kept.
	TrustedProxies Sources
}

// MaxTrustedProxies is the most networks of trusted proxies that a service can have.
const MaxTrustedProxies = 16

func (r *Requests) append(b []byte) []byte {
	protocol := uint8(r.Protocol)
	if r.Transparent {
		protocol |= showsClients
	}
	if r.Leaving {
		protocol |= leaves
	}
	if !r.Traffic.Empty() {
		protocol |= splitsTraffic
	}
	if r.TrustedProxies != (Sources{}) {
		protocol |= trustsProxies
	}
	b = append(b, protocol)
	b = binary.BigEndian.AppendUint32(b, r.ClientIdleSeconds)
	b = binary.BigEndian.AppendUint16(b, r.MaxPerPod)
	b = binary.BigEndian.AppendUint16(b, r.WarmupSeconds)
	if r.TrustedProxies != (Sources{}) {
		b = r.TrustedProxies.append(b)
	}
	return append(b, r.Traffic.encoded...)
}

func (r *Requests) decode(d *decoder) {
	protocol := d.u8()
	r.Protocol = Protocol(protocol &^ (splitsTraffic | showsClients | leaves | trustsProxies))
	r.Transparent, r.Leaving = protocol&showsClients != 0, protocol&leaves != 0
	r.ClientIdleSeconds = d.u32()
	r.MaxPerPod, r.WarmupSeconds = d.u16(), d.u16()
	if protocol&trustsProxies != 0 {
		r.TrustedProxies.decode(d)
	}
	if protocol&splitsTraffic != 0 {
		r.Traffic.decode(d)
	}
}

// Sync is part of a step that turns version Base of the table of services into Version. Base 0 is the empty table. The
// step consists of Pieces messages and is applied when all of them have arrived. Server and Client create and apply
// Sync messages themselves; a Receive handler never gets one.
type Sync struct {
	Base, Version uint64 // versions of the table before and after the step
	// Hash is the hash of the table after the step: the sum, modulo 2^64, of the first 8 bytes of the SHA-256 of each
	// entry's encoding.
	Hash          uint64
	Piece, Pieces uint16           // number of this message, from 0, and of all messages of the step
	Upserts       []Service        // services that are added or changed
	Removals      []netip.AddrPort // addresses of services that are removed
}

// Type returns TypeSync.
func (*Sync) Type() Type { return TypeSync }

func (m *Sync) check() error {
	if m.Version == 0 {
		return fmt.Errorf("version 0 is the empty table")
	}
	if m.Piece >= m.Pieces {
		return fmt.Errorf("piece %d of %d", m.Piece, m.Pieces)
	}
	if m.Base == 0 && len(m.Removals) > 0 {
		return fmt.Errorf("a removal from the empty table")
	}
	for i := range m.Upserts {
		if err := m.Upserts[i].check(); err != nil {
			return err
		}
	}
	for _, a := range m.Removals {
		if err := checkAddr("removed service", a); err != nil {
			return err
		}
	}
	return nil
}

func (m *Sync) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, m.Base)
	b = binary.BigEndian.AppendUint64(b, m.Version)
	b = binary.BigEndian.AppendUint64(b, m.Hash)
	b = binary.BigEndian.AppendUint16(b, m.Piece)
	b = binary.BigEndian.AppendUint16(b, m.Pieces)
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.Upserts)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.Removals)))
	for i := range m.Upserts {
		b = m.Upserts[i].append(b)
	}
	for _, a := range m.Removals {
		b = appendAddr(b, a)
	}
	return b
}

func (m *Sync) decode(d *decoder) {
	m.Base, m.Version, m.Hash = d.u64(), d.u64(), d.u64()
	m.Piece, m.Pieces = d.u16(), d.u16()
	upserts, removals := int(d.u16()), int(d.u16())
	if n := d.count(upserts, serviceFixed); n > 0 {
		m.Upserts = make([]Service, n)
	}
	for i := range m.Upserts {
		m.Upserts[i].decode(d)
	}
	if n := d.count(removals, addrSize); n > 0 {
		m.Removals = make([]netip.AddrPort, n)
	}
	for i := range m.Removals {
		m.Removals[i] = d.addr()
	}
}

// Moved says that the next step of the table gives a service another address: it removes From and adds To. Connections
// at From may go on for DrainMillis milliseconds. Without this message, or with another step, they end at once.
type Moved struct {
	From, To    netip.AddrPort // the former address and the new one
	DrainMillis uint32         // how long connections at From may go on, in milliseconds
}

// Type returns TypeMoved.
func (*Moved) Type() Type { return TypeMoved }

func (m *Moved) check() error {
	if err := checkAddr("former address", m.From); err != nil {
		return err
	}
	if err := checkAddr("new address", m.To); err != nil {
		return err
	}
	if m.From == m.To {
		return fmt.Errorf("the addresses are both %s", m.From)
	}
	return nil
}

func (m *Moved) append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(appendAddr(appendAddr(b, m.From), m.To), m.DrainMillis)
}

func (m *Moved) decode(d *decoder) {
	m.From, m.To, m.DrainMillis = d.addr(), d.addr(), d.u32()
}
