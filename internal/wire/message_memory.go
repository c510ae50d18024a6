// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
)

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
