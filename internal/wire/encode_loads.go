// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
)

// MaxPodLoads is how many pods fit into one Loads.
const MaxPodLoads = 36

func (m *Loads) check() error {
	if len(m.Pods) > MaxPodLoads {
		return fmt.Errorf("%d pods, at most %d a message", len(m.Pods), MaxPodLoads)
	}
	for i := range m.Pods {
		if err := checkAddr("service", m.Pods[i].Service); err != nil {
			return err
		}
	}
	return nil
}

func (m *Loads) append(b []byte) []byte {
	b = append(b, byte(len(m.Pods)))
	for i := range m.Pods {
		p := &m.Pods[i]
		b = binary.BigEndian.AppendUint64(appendAddr(b, p.Service), p.PodID)
		b = binary.BigEndian.AppendUint32(b, p.OpenFlows)
	}
	return b
}

func (m *Loads) decode(d *decoder) {
	if n := d.count(int(d.u8()), podLoadSize); n > 0 {
		m.Pods = make([]PodLoad, n)
	}
	for i := range m.Pods {
		p := &m.Pods[i]
		p.Service, p.PodID, p.OpenFlows = d.addr(), d.u64(), d.u32()
	}
}
