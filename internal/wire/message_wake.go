// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"wangell.loutres.me/internal/base/monotime"
)

// Wake asks the controller for a pod.
type Wake struct {
	Service netip.AddrPort // the service address
	// Seq numbers the wakes that this daemon has asked for at this service since its start.
	Seq uint64
	// SYNSeen is when the gate parked the first SYN; Noticed is when the daemon read the gate's event.
	SYNSeen, Noticed monotime.Time
	// Parked is the number of parked SYNs when the message was created.
	Parked uint32
}

// Type returns TypeWake.
func (*Wake) Type() Type { return TypeWake }

func (m *Wake) check() error { return checkService(m.Service, m.SYNSeen, m.Noticed) }

func (m *Wake) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.Seq)
	b = appendTime(appendTime(b, m.SYNSeen), m.Noticed)
	return binary.BigEndian.AppendUint32(b, m.Parked)
}

func (m *Wake) decode(d *decoder) {
	m.Service, m.Seq = d.addr(), d.u64()
	m.SYNSeen, m.Noticed = d.time(), d.time()
	m.Parked = d.u32()
}

func (m *Wake) times(f func(*monotime.Time)) {
	f(&m.SYNSeen)
	f(&m.Noticed)
}

// Refuse reports that a wake failed: parked clients get an RST and the service is cold again.
type Refuse struct {
	Service netip.AddrPort // the service address
	Reason  string         // why the wake failed, at most 200 bytes
}

// Type returns TypeRefuse.
func (*Refuse) Type() Type { return TypeRefuse }

func (m *Refuse) check() error {
	if err := checkService(m.Service); err != nil {
		return err
	}
	return checkString("reason", m.Reason, MaxReason)
}

func (m *Refuse) append(b []byte) []byte { return appendText(appendAddr(b, m.Service), m.Reason) }

func (m *Refuse) decode(d *decoder) { m.Service, m.Reason = d.addr(), d.text() }

// Listening reports that a pod's socket has entered LISTEN, as observed by the kernel of its home node, and that its
// Probe has succeeded if it has one.
type Listening struct {
	Service netip.AddrPort // the service address
	PodID   uint64         // the pod
	At      monotime.Time  // when its socket entered LISTEN, or when it began to serve
}

// Type returns TypeListening.
func (*Listening) Type() Type { return TypeListening }

func (m *Listening) check() error { return checkService(m.Service, m.At) }

func (m *Listening) append(b []byte) []byte {
	return appendTime(binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.PodID), m.At)
}

func (m *Listening) decode(d *decoder) { m.Service, m.PodID, m.At = d.addr(), d.u64(), d.time() }

func (m *Listening) times(f func(*monotime.Time)) { f(&m.At) }

// Deaf reports that a pod that served has closed its last listening socket, or that its process has ended, as observed
// by the kernel of its home node. Until Listening the pod gets no new flow.
type Deaf struct {
	Service netip.AddrPort // the service address
	PodID   uint64         // the pod
	At      monotime.Time  // when that was seen
}

// Type returns TypeDeaf.
func (*Deaf) Type() Type { return TypeDeaf }

func (m *Deaf) check() error { return checkService(m.Service, m.At) }

func (m *Deaf) append(b []byte) []byte {
	return appendTime(binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.PodID), m.At)
}

func (m *Deaf) decode(d *decoder) { m.Service, m.PodID, m.At = d.addr(), d.u64(), d.time() }

func (m *Deaf) times(f func(*monotime.Time)) { f(&m.At) }

// MaxSockets is the most addresses that a Sockets may have.
const MaxSockets = 16

// Sockets reports where the programs of a pod listen for TCP connections, if two seconds after the daemon began to wait
// for the pod, none listens on the pod's address. It is sent again when that changes.
type Sockets struct {
	Service netip.AddrPort   // the service address
	PodID   uint64           // the pod
	At      []netip.AddrPort // the addresses, 0.0.0.0 or :: for all interfaces; at most MaxSockets
}

// Type returns TypeSockets.
func (*Sockets) Type() Type { return TypeSockets }

func (m *Sockets) check() error {
	if len(m.At) > MaxSockets {
		return fmt.Errorf("%d sockets, at most %d", len(m.At), MaxSockets)
	}
	for _, a := range m.At {
		if !a.IsValid() || a.Port() == 0 || a.Addr().Zone() != "" || a.Addr().Is4In6() {
			return fmt.Errorf("a socket at %s", a)
		}
	}
	return checkService(m.Service)
}

func (m *Sockets) append(b []byte) []byte {
	b = append(binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.PodID), byte(len(m.At)))
	for _, a := range m.At {
		b = appendAddr(b, a)
	}
	return b
}

func (m *Sockets) decode(d *decoder) {
	m.Service, m.PodID = d.addr(), d.u64()
	if n := d.count(int(d.u8()), addrSize); n > 0 {
		m.At = make([]netip.AddrPort, n)
	}
	for i := range m.At {
		m.At[i] = d.addr()
	}
}

// Unready reports that a pod with a Probe listens, but is not ready: its Probe has not succeeded yet, or fails again.
// Until Listening the pod gets no new flow. It is sent again when the answer changes.
type Unready struct {
	Service netip.AddrPort // the service address
	PodID   uint64         // the pod
	At      monotime.Time  // when its socket entered LISTEN; zero if it was ready before
	Answer  string         // what the Probe said last, at most 200 bytes; empty if it has not run yet
	Failed  bool           // its startupProbe has not succeeded in time
}

// Type returns TypeUnready.
func (*Unready) Type() Type { return TypeUnready }

func (m *Unready) check() error {
	if err := checkService(m.Service, m.At); err != nil {
		return err
	}
	return checkString("answer", m.Answer, MaxReason)
}

func (m *Unready) append(b []byte) []byte {
	b = appendTime(binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.PodID), m.At)
	b = appendText(b, m.Answer)
	if m.Failed {
		b = append(b, 1)
	}
	return b
}

func (m *Unready) decode(d *decoder) {
	m.Service, m.PodID, m.At, m.Answer = d.addr(), d.u64(), d.time(), d.text()
	if d.err == nil && d.left() > 0 {
		if m.Failed = d.u8() == 1; !m.Failed {
			d.fail("trailing byte: it is 1, or left out")
		}
	}
}

func (m *Unready) times(f func(*monotime.Time)) { f(&m.At) }

// Trace reports times of a wake that only the gate observes; zero means "not known yet". A wake may have several Trace
// messages, each with more of the times.
type Trace struct {
	Service     netip.AddrPort // the service address
	PodID       uint64         // the pod
	Released    monotime.Time  // the last parked SYN was released
	FirstSYNACK monotime.Time  // the pod sent its first SYN-ACK
	FirstByte   monotime.Time  // the pod sent its first payload byte
	ReleasedN   uint32         // number of released SYNs
}

// Type returns TypeTrace.
func (*Trace) Type() Type { return TypeTrace }

func (m *Trace) check() error { return checkService(m.Service, m.Released, m.FirstSYNACK, m.FirstByte) }

func (m *Trace) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.PodID)
	b = appendTime(appendTime(appendTime(b, m.Released), m.FirstSYNACK), m.FirstByte)
	return binary.BigEndian.AppendUint32(b, m.ReleasedN)
}

func (m *Trace) decode(d *decoder) {
	m.Service, m.PodID = d.addr(), d.u64()
	m.Released, m.FirstSYNACK, m.FirstByte = d.time(), d.time(), d.time()
	m.ReleasedN = d.u32()
}

func (m *Trace) times(f func(*monotime.Time)) {
	f(&m.Released)
	f(&m.FirstSYNACK)
	f(&m.FirstByte)
}

// Caller reports the span of a client whose request has waited for a pod of a service and gets one, from its header
// traceparent (W3C Trace Context, level 1).
type Caller struct {
	Service netip.AddrPort // the service address
	TraceID [16]byte       // of the trace, not zero
	SpanID  [8]byte        // of the span, not zero
	Flags   uint8          // 1: the client records the span
}

// Type returns TypeCaller.
func (*Caller) Type() Type { return TypeCaller }

func (m *Caller) check() error {
	if m.TraceID == [16]byte{} || m.SpanID == [8]byte{} {
		return errors.New("no trace")
	}
	return checkService(m.Service)
}

func (m *Caller) append(b []byte) []byte {
	b = append(appendAddr(b, m.Service), m.TraceID[:]...)
	return append(append(b, m.SpanID[:]...), m.Flags)
}

func (m *Caller) decode(d *decoder) {
	m.Service = d.addr()
	copy(m.TraceID[:], d.take(len(m.TraceID)))
	copy(m.SpanID[:], d.take(len(m.SpanID)))
	m.Flags = d.u8()
}
