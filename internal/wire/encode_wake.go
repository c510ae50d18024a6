// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// backendFixed is the number of bytes of a pod without its texts.
const backendFixed = 8 + 1 + addrSize + ipSize + 1 + 1

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

func (m *Refuse) check() error {
	if err := checkService(m.Service); err != nil {
		return err
	}
	return checkString("reason", m.Reason, MaxReason)
}

func (m *Refuse) append(b []byte) []byte { return appendText(appendAddr(b, m.Service), m.Reason) }

func (m *Refuse) decode(d *decoder) { m.Service, m.Reason = d.addr(), d.text() }

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
	if err := checkString("netns", p.Netns, maxNetns); err != nil {
		return err
	}
	return p.checkProbe()
}

func (m *Backends) check() error {
	if err := checkService(m.Service); err != nil {
		return err
	}
	if len(m.Pods) > maxPods {
		return fmt.Errorf("%d pods, at most %d per message", len(m.Pods), maxPods)
	}
	if m.Sharing > maxPods {
		return fmt.Errorf("%d pods share the parked SYNs, at most %d can", m.Sharing, maxPods)
	}
	for i := range m.Pods {
		if err := m.Pods[i].check(); err != nil {
			return fmt.Errorf("pod %d: %w", m.Pods[i].PodID, err)
		}
	}
	if n := len(m.probes()); n > MaxProbes {
		return fmt.Errorf("%d different probes, at most %d per message", n, MaxProbes)
	}
	return nil
}

func (m *Backends) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.Generation)
	b = append(b, byte(len(m.Pods)))
	for i := range m.Pods {
		p := &m.Pods[i]
		b = append(binary.BigEndian.AppendUint64(b, p.PodID), byte(p.State))
		b = appendIP(appendAddr(b, p.Addr), p.NodeAddr)
		b = appendText(appendText(b, p.Node), p.Netns)
	}
	if probes := m.probes(); len(probes) > 0 {
		return m.appendProbes(append(b, m.Sharing), probes)
	}
	if m.Sharing > 0 { // left out if zero, so that daemons from before the field was added read the message
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
		m.Sharing = d.u8()
		switch {
		case d.left() > 0:
			m.decodeProbes(d)
		case m.Sharing == 0:
			d.fail("trailing zero: the number of sharing pods is left out if it is 0")
		}
	}
}

func (m *Listening) check() error { return checkService(m.Service, m.At) }

func (m *Listening) append(b []byte) []byte {
	return appendTime(binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.PodID), m.At)
}

func (m *Listening) decode(d *decoder) { m.Service, m.PodID, m.At = d.addr(), d.u64(), d.time() }

func (m *Deaf) check() error { return checkService(m.Service, m.At) }

func (m *Deaf) append(b []byte) []byte {
	return appendTime(binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.PodID), m.At)
}

func (m *Deaf) decode(d *decoder) { m.Service, m.PodID, m.At = d.addr(), d.u64(), d.time() }

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

func (m *Idle) check() error { return checkService(m.Service, m.LastPacket) }

func (m *Idle) append(b []byte) []byte { return appendTime(appendAddr(b, m.Service), m.LastPacket) }

func (m *Idle) decode(d *decoder) { m.Service, m.LastPacket = d.addr(), d.time() }

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

func (m *Denied) check() error {
	if err := checkService(m.Service); err != nil {
		return err
	}
	return checkIP("source", m.Source)
}

func (m *Denied) append(b []byte) []byte {
	return appendIP(binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.Total), m.Source)
}

func (m *Denied) decode(d *decoder) { m.Service, m.Total, m.Source = d.addr(), d.u64(), d.ip() }

func (m *Quiet) check() error { return checkService(m.Service, m.LastPacket) }

func (m *Quiet) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.PodID)
	b = appendTime(binary.BigEndian.AppendUint64(b, m.Generation), m.LastPacket)
	return binary.BigEndian.AppendUint32(b, m.OpenFlows)
}

func (m *Quiet) decode(d *decoder) {
	m.Service, m.PodID, m.Generation = d.addr(), d.u64(), d.u64()
	m.LastPacket, m.OpenFlows = d.time(), d.u32()
}
