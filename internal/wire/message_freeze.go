// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"wangell.loutres.me/internal/base/monotime"
)

// Flags of Freeze.
const (
	freezeReclaim    = 1
	freezeUnlessBusy = 2
)

// maxCgroup bounds the path of a cgroup, in bytes.
const maxCgroup = 255

// frozenPodFixed is the size of a FrozenPod without its path, in bytes.
const frozenPodFixed = 8 + 8 + 1

// Freeze lists the pods of a service to freeze. All others run, and are thawed if necessary. A daemon thaws a pod by
// itself as soon as a packet needs an answer from it, and freezes it again only for a Freeze with a higher Seq.
type Freeze struct {
	Service netip.AddrPort // the service address
	// Seq numbers the decisions about a service, from 1. Daemons ignore a message with a lower one.
	Seq uint64
	// Reclaim has the memory of the frozen pods moved to swap.
	Reclaim bool
	// UnlessBusy leaves pods running that are at work: the daemon measures their CPU usage.
	UnlessBusy bool
	Pods       []FrozenPod // on the daemon's node, at most 64
}

// Type returns TypeFreeze.
func (*Freeze) Type() Type { return TypeFreeze }

func (m *Freeze) check() error {
	if err := checkService(m.Service); err != nil {
		return err
	}
	if m.Seq == 0 {
		return fmt.Errorf("decision 0: they are numbered from 1")
	}
	return checkPods(m.Pods, maxPods, func(p *FrozenPod) error {
		if err := checkTimes(p.LastPacket); err != nil {
			return err
		}
		return checkString("cgroup", p.Cgroup, maxCgroup)
	})
}

func (m *Freeze) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.Seq)
	var flags byte
	if m.Reclaim {
		flags |= freezeReclaim
	}
	if m.UnlessBusy {
		flags |= freezeUnlessBusy
	}
	return appendPods(append(b, flags), m.Pods, func(b []byte, p *FrozenPod) []byte {
		return appendText(appendTime(binary.BigEndian.AppendUint64(b, p.PodID), p.LastPacket), p.Cgroup)
	})
}

func (m *Freeze) decode(d *decoder) {
	m.Service, m.Seq = d.addr(), d.u64()
	flags := d.u8()
	if flags&^(freezeReclaim|freezeUnlessBusy) != 0 {
		d.fail("unknown flags %#x", flags)
	}
	m.Reclaim, m.UnlessBusy = flags&freezeReclaim != 0, flags&freezeUnlessBusy != 0
	m.Pods = decodePods(d, frozenPodFixed, func(p *FrozenPod) {
		p.PodID, p.LastPacket, p.Cgroup = d.u64(), d.time(), d.text()
	})
}

func (m *Freeze) times(f func(*monotime.Time)) {
	for i := range m.Pods {
		f(&m.Pods[i].LastPacket)
	}
}

// FrozenPod is a pod to freeze.
type FrozenPod struct {
	PodID uint64 // the pod
	// LastPacket is the time of the pod's last packet at the decision. A pod that has had a packet since is not
	// frozen.
	LastPacket monotime.Time
	// Cgroup is the path of the pod's cgroup below the root of the hierarchies, at most 255 bytes. It is empty in a
	// cluster, where the daemon asks the container runtime.
	Cgroup string
}

// Frozen reports that a pod was frozen, was thawed, or was not frozen. It is sent again when the memory of a frozen pod
// has been given back, and whenever a Freeze is repeated.
type Frozen struct {
	Service netip.AddrPort // the service address
	PodID   uint64         // the pod
	Seq     uint64         // of the Freeze that it answers
	Frozen  bool           // the pod is frozen; otherwise it runs
	// At is when that happened.
	At monotime.Time
	// Resident and Swapped are the bytes of the pod's memory in RAM and in swap; 0 if not measured.
	Resident, Swapped uint64
	// Reason says why the pod runs, or why a frozen one keeps its memory; at most 200 bytes, for users.
	Reason string
}

// Type returns TypeFrozen.
func (*Frozen) Type() Type { return TypeFrozen }

func (m *Frozen) check() error {
	if err := checkService(m.Service, m.At); err != nil {
		return err
	}
	return checkString("reason", m.Reason, MaxReason)
}

func (m *Frozen) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.PodID)
	b = appendFlag(binary.BigEndian.AppendUint64(b, m.Seq), m.Frozen, 1)
	b = binary.BigEndian.AppendUint64(appendTime(b, m.At), m.Resident)
	return appendText(binary.BigEndian.AppendUint64(b, m.Swapped), m.Reason)
}

func (m *Frozen) decode(d *decoder) {
	m.Service, m.PodID, m.Seq, m.Frozen = d.addr(), d.u64(), d.u64(), d.flag(1)
	m.At, m.Resident, m.Swapped, m.Reason = d.time(), d.u64(), d.u64(), d.text()
}

func (m *Frozen) times(f func(*monotime.Time)) { f(&m.At) }
