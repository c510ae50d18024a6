// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Limits of what a BACKENDS says of readinessProbes.
const (
	MaxProbe  = 2304 // bytes of one
	MaxProbes = 8    // different ones in a message

	maxRuntime = 253 // bytes of a runtime's ID
)

func (p *Backend) checkProbe() error {
	if p.Probe == "" && p.Runtime != "" {
		return fmt.Errorf("a runtime's ID without a probe")
	}
	if err := checkString("probe", p.Probe, MaxProbe); err != nil {
		return err
	}
	return checkString("runtime's ID", p.Runtime, maxRuntime)
}

// probes returns the different probes of the pods, in the order of their first pod.
func (m *Backends) probes() []string {
	var probes []string
	for i := range m.Pods {
		if p := m.Pods[i].Probe; p != "" && !slices.Contains(probes, p) {
			probes = append(probes, p)
		}
	}
	return probes
}

// appendProbes appends the probes, then for each pod the number of its probe, counted from 1, and the runtime's ID.
func (m *Backends) appendProbes(b []byte, probes []string) []byte {
	b = append(b, byte(len(probes)))
	for _, p := range probes {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(p))), p...)
	}
	for i := range m.Pods {
		p := &m.Pods[i]
		number := slices.Index(probes, p.Probe) + 1
		if b = append(b, byte(number)); number > 0 {
			b = appendText(b, p.Runtime)
		}
	}
	return b
}

// decodeProbes reads what appendProbes appends.
func (m *Backends) decodeProbes(d *decoder) {
	n := int(d.u8())
	if n == 0 || n > MaxProbes {
		d.fail("trailing bytes: %d probes, want 1 to %d", n, MaxProbes)
		return
	}
	probes := make([]string, n)
	for i := range probes {
		if probes[i] = d.name(); probes[i] == "" || slices.Contains(probes[:i], probes[i]) {
			d.fail("probe %d is empty or there twice", i+1)
		}
	}
	used := 0 // they are numbered in the order of their first pod
	for i := range m.Pods {
		number := int(d.u8())
		if number == 0 {
			continue
		}
		if number > min(used+1, n) {
			d.fail("probe %d of %d is used before the one ahead of it", number, n)
			return
		}
		used = max(used, number)
		m.Pods[i].Probe, m.Pods[i].Runtime = probes[number-1], d.text()
	}
	if used < n {
		d.fail("probe %d belongs to no pod", used+1)
	}
}

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
