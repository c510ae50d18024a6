// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Limits of the messages.
const (
	maxName      = 253 + 1 + 63
	maxReason    = 200
	maxNode      = 253
	maxNetns     = 255
	maxPods      = 64
	maxPodStats  = 14
	maxPodUsage  = 20
	maxServices  = 100_000 // entries of a table
	syncHeader   = 1 + 3*8 + 4*2
	maxUID       = 64
	maxContainer = 63
	maxSpecHash  = 64
	maxNodes     = 32 // of a piece of NODES
	maxPodEvent  = 5
	knownFlags   = FlagAnnounce | FlagAffinity | FlagPreferLocal | FlagUsage
	serviceFixed = addrSize + 4 + 2 + 2 + 1 + 1 + 2
	backendFixed = 8 + 1 + addrSize + ipSize + 1 + 1
	nodeFixed    = ipSize + 1
	podStatsSize = addrSize + 8 + 4 + 3*8 + 8
	podUsageSize = addrSize + 4*8
	podLoadSize  = addrSize + 8 + 4
)

// body is a message's encoding after the type byte. check refuses what the limits forbid, when sending
// and when receiving; append may rely on it.
type body interface {
	Message
	check() error
	append(b []byte) []byte
	decode(d *decoder)
}

// encode returns a message's bytes: its type, then its body.
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

// decode reads a whole message; it keeps nothing of b.
func decode(b []byte) (Message, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("wire: empty message")
	}
	var m body
	switch t := Type(b[0]); t {
	case TypeSync:
		m = &Sync{}
	case TypeWake:
		m = &Wake{}
	case TypeRefuse:
		m = &Refuse{}
	case TypeBackends:
		m = &Backends{}
	case TypeListening:
		m = &Listening{}
	case TypeTrace:
		m = &Trace{}
	case TypeStats:
		m = &Stats{}
	case TypeIdle:
		m = &Idle{}
	case TypeQuiet:
		m = &Quiet{}
	case TypeNodes:
		m = &Nodes{}
	case TypeNode:
		m = &Node{}
	case TypePodReport:
		m = &PodReport{}
	case TypeUsage:
		m = &Usage{}
	case TypeLoads:
		m = &Loads{}
	default:
		return nil, fmt.Errorf("wire: unknown message %v", t)
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

func (s *Service) check() error {
	if err := checkAddr("service", s.Addr); err != nil {
		return err
	}
	if err := checkString("name", s.Name, maxName); err != nil {
		return fmt.Errorf("service %s: %w", s.Addr, err)
	}
	if unknown := s.Flags &^ knownFlags; unknown != 0 {
		return fmt.Errorf("service %s: unknown flags %#x", s.Addr, unknown)
	}
	return nil
}

// append appends the entry's encoding, of which the table's hash is made, too.
func (s *Service) append(b []byte) []byte {
	b = appendAddr(b, s.Addr)
	b = binary.BigEndian.AppendUint32(b, s.IdleSeconds)
	b = binary.BigEndian.AppendUint16(b, s.MaxParked)
	b = binary.BigEndian.AppendUint16(b, s.MaxParkedPerSource)
	b = append(b, s.Flags, s.Retries)
	b = binary.BigEndian.AppendUint16(b, uint16(len(s.Name)))
	return append(b, s.Name...)
}

func (s *Service) decode(d *decoder) {
	s.Addr = d.addr()
	s.IdleSeconds = d.u32()
	s.MaxParked = d.u16()
	s.MaxParkedPerSource = d.u16()
	s.Flags, s.Retries = d.u8(), d.u8()
	s.Name = d.str(int(d.u16()))
}

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

func (m *Wake) check() error {
	if err := checkAddr("service", m.Service); err != nil {
		return err
	}
	return checkTimes(m.SYNSeen, m.Told)
}

func (m *Wake) append(b []byte) []byte {
	b = appendAddr(b, m.Service)
	b = binary.BigEndian.AppendUint64(b, m.Seq)
	b = binary.BigEndian.AppendUint64(b, uint64(m.SYNSeen))
	b = binary.BigEndian.AppendUint64(b, uint64(m.Told))
	return binary.BigEndian.AppendUint32(b, m.Parked)
}

func (m *Wake) decode(d *decoder) {
	m.Service, m.Seq = d.addr(), d.u64()
	m.SYNSeen, m.Told = d.time(), d.time()
	m.Parked = d.u32()
}

func (m *Refuse) check() error {
	if err := checkAddr("service", m.Service); err != nil {
		return err
	}
	return checkString("reason", m.Reason, maxReason)
}

func (m *Refuse) append(b []byte) []byte {
	return appendText(appendAddr(b, m.Service), m.Reason)
}

func (m *Refuse) decode(d *decoder) {
	m.Service, m.Reason = d.addr(), d.text()
}

func (p *Backend) check() error {
	if p.State < PodStarting || p.State > PodDraining {
		return fmt.Errorf("unknown state %d", p.State)
	}
	if p.Addr.IsValid() || p.State == PodServing {
		if err := checkAddr("address", p.Addr); err != nil {
			return err
		}
	}
	if err := checkString("node", p.Node, maxNode); err != nil {
		return err
	}
	if p.NodeAddr.IsValid() {
		if err := checkIP("address of its node", p.NodeAddr); err != nil {
			return err
		}
	}
	return checkString("netns", p.Netns, maxNetns)
}

func (m *Backends) check() error {
	if err := checkAddr("service", m.Service); err != nil {
		return err
	}
	if len(m.Pods) > maxPods {
		return fmt.Errorf("%d pods, at most %d a message", len(m.Pods), maxPods)
	}
	if m.Sharing > maxPods {
		return fmt.Errorf("%d pods share what is parked, at most %d have room in a message", m.Sharing, maxPods)
	}
	for i := range m.Pods {
		if err := m.Pods[i].check(); err != nil {
			return fmt.Errorf("pod %d: %w", m.Pods[i].PodID, err)
		}
	}
	return nil
}

func (m *Backends) append(b []byte) []byte {
	b = appendAddr(b, m.Service)
	b = binary.BigEndian.AppendUint64(b, m.Generation)
	b = append(b, byte(len(m.Pods)))
	for i := range m.Pods {
		p := &m.Pods[i]
		b = binary.BigEndian.AppendUint64(b, p.PodID)
		b = append(b, byte(p.State))
		b = appendIP(appendAddr(b, p.Addr), p.NodeAddr)
		b = appendText(appendText(b, p.Node), p.Netns)
	}
	if m.Sharing > 0 { // mostly nobody shares; then a daemon that does not know of it understands the message, too
		b = append(b, m.Sharing)
	}
	return b
}

func (m *Backends) decode(d *decoder) {
	m.Service, m.Generation = d.addr(), d.u64()
	if n := d.count(int(d.u8()), backendFixed); n > 0 {
		m.Pods = make([]Backend, n)
	}
	for i := range m.Pods {
		p := &m.Pods[i]
		p.PodID, p.State, p.Addr, p.NodeAddr = d.u64(), PodState(d.u8()), d.addr(), d.ip()
		p.Node, p.Netns = d.text(), d.text()
	}
	if d.err == nil && d.left() > 0 {
		if m.Sharing = d.u8(); m.Sharing == 0 {
			d.fail("trailing zero: a number of pods that share what is parked is 1 or more")
		}
	}
}

func (m *Listening) check() error {
	if err := checkAddr("service", m.Service); err != nil {
		return err
	}
	return checkTimes(m.At)
}

func (m *Listening) append(b []byte) []byte {
	b = appendAddr(b, m.Service)
	b = binary.BigEndian.AppendUint64(b, m.PodID)
	return binary.BigEndian.AppendUint64(b, uint64(m.At))
}

func (m *Listening) decode(d *decoder) { m.Service, m.PodID, m.At = d.addr(), d.u64(), d.time() }

func (m *Trace) check() error {
	if err := checkAddr("service", m.Service); err != nil {
		return err
	}
	return checkTimes(m.Released, m.FirstSYNACK, m.FirstByte)
}

func (m *Trace) append(b []byte) []byte {
	b = appendAddr(b, m.Service)
	b = binary.BigEndian.AppendUint64(b, m.PodID)
	b = binary.BigEndian.AppendUint64(b, uint64(m.Released))
	b = binary.BigEndian.AppendUint64(b, uint64(m.FirstSYNACK))
	b = binary.BigEndian.AppendUint64(b, uint64(m.FirstByte))
	return binary.BigEndian.AppendUint32(b, m.ReleasedN)
}

func (m *Trace) decode(d *decoder) {
	m.Service, m.PodID = d.addr(), d.u64()
	m.Released, m.FirstSYNACK, m.FirstByte = d.time(), d.time(), d.time()
	m.ReleasedN = d.u32()
}

func (m *Stats) check() error {
	if len(m.Pods) > maxPodStats {
		return fmt.Errorf("%d pods, at most %d a message", len(m.Pods), maxPodStats)
	}
	for i := range m.Pods {
		if err := checkAddr("service", m.Pods[i].Service); err != nil {
			return err
		}
		if err := checkTimes(m.Pods[i].LastPacket); err != nil {
			return err
		}
	}
	return nil
}

func (m *Stats) append(b []byte) []byte {
	b = append(b, byte(len(m.Pods)))
	for i := range m.Pods {
		p := &m.Pods[i]
		b = appendAddr(b, p.Service)
		b = binary.BigEndian.AppendUint64(b, p.PodID)
		b = binary.BigEndian.AppendUint32(b, p.OpenFlows)
		b = binary.BigEndian.AppendUint64(b, p.NewFlows)
		b = binary.BigEndian.AppendUint64(b, p.BytesIn)
		b = binary.BigEndian.AppendUint64(b, p.BytesOut)
		b = binary.BigEndian.AppendUint64(b, uint64(p.LastPacket))
	}
	return b
}

func (m *Stats) decode(d *decoder) {
	if n := d.count(int(d.u8()), podStatsSize); n > 0 {
		m.Pods = make([]PodStats, n)
	}
	for i := range m.Pods {
		p := &m.Pods[i]
		p.Service, p.PodID, p.OpenFlows = d.addr(), d.u64(), d.u32()
		p.NewFlows, p.BytesIn, p.BytesOut = d.u64(), d.u64(), d.u64()
		p.LastPacket = d.time()
	}
}

func (m *Idle) check() error {
	if err := checkAddr("service", m.Service); err != nil {
		return err
	}
	return checkTimes(m.LastPacket)
}

func (m *Idle) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(appendAddr(b, m.Service), uint64(m.LastPacket))
}

func (m *Idle) decode(d *decoder) { m.Service, m.LastPacket = d.addr(), d.time() }

func (m *Quiet) check() error {
	if err := checkAddr("service", m.Service); err != nil {
		return err
	}
	return checkTimes(m.LastPacket)
}

func (m *Quiet) append(b []byte) []byte {
	b = appendAddr(b, m.Service)
	b = binary.BigEndian.AppendUint64(b, m.PodID)
	b = binary.BigEndian.AppendUint64(b, m.Generation)
	b = binary.BigEndian.AppendUint64(b, uint64(m.LastPacket))
	return binary.BigEndian.AppendUint32(b, m.OpenFlows)
}

func (m *Quiet) decode(d *decoder) {
	m.Service, m.PodID, m.Generation = d.addr(), d.u64(), d.u64()
	m.LastPacket, m.OpenFlows = d.time(), d.u32()
}
