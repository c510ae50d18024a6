// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
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
