// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"wangell.loutres.me/internal/base/monotime"
)

// Most pods per message, so that a message fits a datagram.
const (
	MaxPodStats   = 14 // of Stats
	MaxPodUsage   = 20 // of Usage
	MaxPodLoads   = 36 // of Loads
	MaxPodAnswers = 12 // of Answers
)

// Bytes of a pod in each of these messages.
const (
	podStatsSize   = addrSize + 8 + 4 + 3*8 + 8
	podUsageSize   = addrSize + 4*8
	podLoadSize    = addrSize + 8 + 4
	podAnswersSize = addrSize + 8 + 4 + 8 + Classes*8
)

// PodStats holds the counters of one pod since its start.
type PodStats struct {
	Service    netip.AddrPort // the service address
	PodID      uint64         // the pod
	OpenFlows  uint32         // connections that are open
	NewFlows   uint64         // handshakes completed since the pod was added to the gate
	BytesIn    uint64         // client to pod, sum of the IP total lengths
	BytesOut   uint64         // pod to client, sum of the IP total lengths
	LastPacket monotime.Time  // time of its last packet, in either direction
}

// Stats carries the counters of pods that changed.
type Stats struct{ Pods []PodStats } // at most MaxPodStats per message

// Type returns TypeStats.
func (*Stats) Type() Type { return TypeStats }

func (m *Stats) check() error {
	return checkPods(m.Pods, MaxPodStats, func(p *PodStats) error { return checkService(p.Service, p.LastPacket) })
}

func (m *Stats) append(b []byte) []byte {
	return appendPods(b, m.Pods, func(b []byte, p *PodStats) []byte {
		b = binary.BigEndian.AppendUint64(appendAddr(b, p.Service), p.PodID)
		b = binary.BigEndian.AppendUint32(b, p.OpenFlows)
		b = binary.BigEndian.AppendUint64(b, p.NewFlows)
		b = binary.BigEndian.AppendUint64(b, p.BytesIn)
		b = binary.BigEndian.AppendUint64(b, p.BytesOut)
		return appendTime(b, p.LastPacket)
	})
}

func (m *Stats) decode(d *decoder) {
	m.Pods = decodePods(d, podStatsSize, func(p *PodStats) {
		p.Service, p.PodID, p.OpenFlows = d.addr(), d.u64(), d.u32()
		p.NewFlows, p.BytesIn, p.BytesOut = d.u64(), d.u64(), d.u64()
		p.LastPacket = d.time()
	})
}

func (m *Stats) times(f func(*monotime.Time)) {
	for i := range m.Pods {
		f(&m.Pods[i].LastPacket)
	}
}

// Idle reports that a service had no packet for its idle timeout.
type Idle struct {
	Service    netip.AddrPort // the service address
	LastPacket monotime.Time  // time of the last packet of its pods on this node
}

// Type returns TypeIdle.
func (*Idle) Type() Type { return TypeIdle }

func (m *Idle) check() error { return checkService(m.Service, m.LastPacket) }

func (m *Idle) append(b []byte) []byte { return appendTime(appendAddr(b, m.Service), m.LastPacket) }

func (m *Idle) decode(d *decoder) { m.Service, m.LastPacket = d.addr(), d.time() }

func (m *Idle) times(f func(*monotime.Time)) { f(&m.LastPacket) }

// Quiet answers a Backends message that drains a pod, once the gate gives the pod no new flow.
type Quiet struct {
	Service    netip.AddrPort // the service address
	PodID      uint64         // the pod
	Generation uint64         // of the Backends message that it answers
	LastPacket monotime.Time  // time of its last packet
	OpenFlows  uint32         // connections that are open
}

// Type returns TypeQuiet.
func (*Quiet) Type() Type { return TypeQuiet }

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

func (m *Quiet) times(f func(*monotime.Time)) { f(&m.LastPacket) }

// PodUsage is the CPU time and memory that all containers of a pod use together.
type PodUsage struct {
	Service netip.AddrPort // the service address
	PodID   uint64         // the pod
	// CPU is the time of all cores since the pod's start, in nanoseconds.
	CPU uint64
	// Memory is the working set in bytes.
	Memory uint64
	// At is when the values were measured.
	At monotime.Time
}

// Usage carries the usage of pods whose service has FlagUsage.
type Usage struct{ Pods []PodUsage } // at most MaxPodUsage per message

// Type returns TypeUsage.
func (*Usage) Type() Type { return TypeUsage }

func (m *Usage) check() error {
	return checkPods(m.Pods, MaxPodUsage, func(p *PodUsage) error { return checkService(p.Service, p.At) })
}

func (m *Usage) append(b []byte) []byte {
	return appendPods(b, m.Pods, func(b []byte, p *PodUsage) []byte {
		b = binary.BigEndian.AppendUint64(appendAddr(b, p.Service), p.PodID)
		b = binary.BigEndian.AppendUint64(b, p.CPU)
		b = binary.BigEndian.AppendUint64(b, p.Memory)
		return appendTime(b, p.At)
	})
}

func (m *Usage) decode(d *decoder) {
	m.Pods = decodePods(d, podUsageSize, func(p *PodUsage) {
		p.Service, p.PodID, p.CPU, p.Memory, p.At = d.addr(), d.u64(), d.u64(), d.u64(), d.time()
	})
}

func (m *Usage) times(f func(*monotime.Time)) {
	for i := range m.Pods {
		f(&m.Pods[i].At)
	}
}

// Classes is the number of classes of answers: 1 to 5 are those of HTTP status codes, 0 is for requests that got none.
const Classes = 6

// PodAnswers are the requests that came through a node to a pod, since the node's daemon started.
type PodAnswers struct {
	Service netip.AddrPort // the service address
	// PodID is 0 for requests of the service that have no pod: they wait, or no pod has answered them.
	PodID uint64
	// Open is the number of requests that are not answered yet.
	Open uint32
	// Started is the number of requests that the pod was given.
	Started uint64
	// Answered is the number of requests that have ended, by class.
	Answered [Classes]uint64
}

// Answers carries the requests of pods whose service has FlagRequests, if they changed.
type Answers struct {
	At   monotime.Time // when they were counted
	Pods []PodAnswers  // at most MaxPodAnswers
}

// Type returns TypeAnswers.
func (*Answers) Type() Type { return TypeAnswers }

func (m *Answers) check() error {
	if m.At < 0 {
		return fmt.Errorf("negative time %d", m.At)
	}
	return checkPods(m.Pods, MaxPodAnswers, func(p *PodAnswers) error { return checkService(p.Service) })
}

func (m *Answers) append(b []byte) []byte {
	return appendPods(appendTime(b, m.At), m.Pods, func(b []byte, p *PodAnswers) []byte {
		b = binary.BigEndian.AppendUint64(appendAddr(b, p.Service), p.PodID)
		b = binary.BigEndian.AppendUint32(b, p.Open)
		b = binary.BigEndian.AppendUint64(b, p.Started)
		for _, n := range p.Answered {
			b = binary.BigEndian.AppendUint64(b, n)
		}
		return b
	})
}

func (m *Answers) decode(d *decoder) {
	m.At = d.time()
	m.Pods = decodePods(d, podAnswersSize, func(p *PodAnswers) {
		p.Service, p.PodID, p.Open, p.Started = d.addr(), d.u64(), d.u32(), d.u64()
		for i := range p.Answered {
			p.Answered[i] = d.u64()
		}
	})
}

func (m *Answers) times(f func(*monotime.Time)) { f(&m.At) }

// PodLoad is the number of a pod's open flows, from all edge nodes together.
type PodLoad struct {
	Service   netip.AddrPort // the service address
	PodID     uint64         // the pod
	OpenFlows uint32         // connections that are open, from all edge nodes
}

// Loads carries the open flows of pods from their home node to the controller, which forwards them to the other nodes
// for load balancing.
type Loads struct{ Pods []PodLoad } // at most MaxPodLoads per message

// Type returns TypeLoads.
func (*Loads) Type() Type { return TypeLoads }

func (m *Loads) check() error {
	return checkPods(m.Pods, MaxPodLoads, func(p *PodLoad) error { return checkService(p.Service) })
}

func (m *Loads) append(b []byte) []byte {
	return appendPods(b, m.Pods, func(b []byte, p *PodLoad) []byte {
		b = binary.BigEndian.AppendUint64(appendAddr(b, p.Service), p.PodID)
		return binary.BigEndian.AppendUint32(b, p.OpenFlows)
	})
}

func (m *Loads) decode(d *decoder) {
	m.Pods = decodePods(d, podLoadSize, func(p *PodLoad) {
		p.Service, p.PodID, p.OpenFlows = d.addr(), d.u64(), d.u32()
	})
}

// Denied reports that the rules of a service refused a client, at most once a minute for each service and daemon.
type Denied struct {
	Service netip.AddrPort // the service address
	// Total is the number of SYNs that this daemon's gate has refused since it got the service.
	Total uint64
	// Source is the client.
	Source netip.Addr
}

// Type returns TypeDenied.
func (*Denied) Type() Type { return TypeDenied }

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

// checkPods checks the pods of a message that holds at most limit of them.
func checkPods[P any](pods []P, limit int, check func(*P) error) error {
	if len(pods) > limit {
		return fmt.Errorf("%d pods, at most %d per message", len(pods), limit)
	}
	for i := range pods {
		if err := check(&pods[i]); err != nil {
			return err
		}
	}
	return nil
}

// appendPods appends the number of pods in one byte, then the pods.
func appendPods[P any](b []byte, pods []P, one func([]byte, *P) []byte) []byte {
	b = append(b, byte(len(pods)))
	for i := range pods {
		b = one(b, &pods[i])
	}
	return b
}

// decodePods reads what appendPods wrote; size is the number of bytes of a pod.
func decodePods[P any](d *decoder, size int, one func(*P)) []P {
	n := d.count(int(d.u8()), size)
	if n == 0 {
		return nil
	}
	pods := make([]P, n)
	for i := range pods {
		one(&pods[i])
	}
	return pods
}
