// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
)

func (m *Usage) check() error {
	if len(m.Pods) > maxPodUsage {
		return fmt.Errorf("%d pods, at most %d a message", len(m.Pods), maxPodUsage)
	}
	for i := range m.Pods {
		if err := checkAddr("service", m.Pods[i].Service); err != nil {
			return err
		}
		if err := checkTimes(m.Pods[i].At); err != nil {
			return err
		}
	}
	return nil
}

func (m *Usage) append(b []byte) []byte {
	b = append(b, byte(len(m.Pods)))
	for i := range m.Pods {
		p := &m.Pods[i]
		b = appendAddr(b, p.Service)
		for _, v := range []uint64{p.PodID, p.CPU, p.Memory, uint64(p.At)} {
			b = binary.BigEndian.AppendUint64(b, v)
		}
	}
	return b
}

func (m *Usage) decode(d *decoder) {
	if n := d.count(int(d.u8()), podUsageSize); n > 0 {
		m.Pods = make([]PodUsage, n)
	}
	for i := range m.Pods {
		p := &m.Pods[i]
		p.Service, p.PodID, p.CPU, p.Memory, p.At = d.addr(), d.u64(), d.u64(), d.u64(), d.time()
	}
}
