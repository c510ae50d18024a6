// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"cmp"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// MaxReplicas bounds the number of pods of a service.
const MaxReplicas = 32

// Spec is the part of a service's manifest that the machine needs.
type Spec struct {
	// Name is "namespace/name", for messages.
	Name string
	// Port is the port on which the pod is expected to listen, for messages; of a service with several ports, for the
	// first one.
	Port uint16
	// More are the further ports of the service, at most MaxPorts-1 of package v1alpha1.
	More []Port
	// WakeTimeout bounds a wake, up to the time when the pod listens.
	WakeTimeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL.
	Grace time.Duration
	// DrainTimeout bounds the remaining life of the flows of a pod that is replaced, or no longer needed while other
	// pods serve. Default: Grace.
	DrainTimeout time.Duration
	// IdleTimeout is the time without a packet after which the service is stopped. Without FreezeAfter, the daemons
	// watch it.
	IdleTimeout time.Duration
	// FreezeAfter is the time without a packet after which the pods are frozen; 0 if they are not. It is less than
	// IdleTimeout.
	FreezeAfter time.Duration
	// FreezeWhenBusy freezes pods even if they use the CPU.
	FreezeWhenBusy bool
	// Min is the least number of pods. Above zero, an idle service does not go to sleep.
	Min int
	// MinWhy is why it has Min pods, for messages. By default, the message is that so many are wanted.
	MinWhy string
	// Max is the largest number of pods. Default: 1, or Min.
	Max int
	// BurstPerPod is the number of parked connection requests for each pod that a wake starts. Zero starts one pod,
	// however many requests are parked.
	BurstPerPod int
	// Rolls is set for a runtime that replaces pods of an old spec itself. It excludes Single.
	Rolls bool
	// Single is set if no two pods may run at the same time: none is started before the one before it is known to be
	// gone, and there is never more than one. A changed spec ends the old pod first. Without it, the next pod starts
	// beside one that is ending.
	Single bool
	// Volume is the volume that two pods at once would both write to, for messages; it may be empty.
	Volume string
}

// silence is the time without a packet after which daemons report the service idle.
func (s Spec) silence() time.Duration { return cmp.Or(s.FreezeAfter, s.IdleTimeout) }

// UsedSince reports whether a packet came after a daemon has reported a service or a pod idle. Both are last packets:
// idle is the time in the report, which is made after a time of silence. The two times may have come in different
// messages of a daemon with another clock (docs/protocol/table.md, Clocks), and then differ although the packet is the
// same. Another packet came later than idle by at least the silence.
func UsedSince(idle, last monotime.Time, silence time.Duration) bool {
	return last > idle.Add(silence/2)
}

// clamp limits a number of pods to the spec's bounds; it is at least 1.
func (s Spec) clamp(n int) int {
	if s.Single {
		return 1
	}
	return min(max(n, 1, s.Min), max(s.Max, 1, s.Min), MaxReplicas)
}

// burst is the number of pods that a wake starts at once for a number of parked connection requests.
func (s Spec) burst(parked uint32) int {
	if s.BurstPerPod <= 0 {
		return s.clamp(1)
	}
	return s.clamp(int((uint64(parked) + uint64(s.BurstPerPod) - 1) / uint64(s.BurstPerPod)))
}

// drainTimeout bounds the life of a pod that gets no new flows.
func (s Spec) drainTimeout() time.Duration {
	if s.DrainTimeout > 0 {
		return s.DrainTimeout
	}
	return s.Grace
}
