// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/json"
	"slices"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// PhaseName names a phase, a step of a wake, by what has happened at its end.
type PhaseName string

// The phases of a wake, in the order in which they usually end.
const (
	PhaseSYNSeen     PhaseName = "syn-seen"     // the gate parked the first SYN
	PhaseTold        PhaseName = "told"         // the daemon's user space read the gate's event
	PhaseHandled     PhaseName = "handled"      // the controller received WAKE and asks for a pod
	PhaseImage       PhaseName = "image"        // the image is on the machine and unpacked
	PhaseSandbox     PhaseName = "sandbox"      // network namespace, device and address exist
	PhaseCreated     PhaseName = "created"      // the container exists, its process is not started
	PhaseStarted     PhaseName = "started"      // the process runs
	PhaseListening   PhaseName = "listening"    // its socket listens
	PhaseReady       PhaseName = "ready"        // its readinessProbe succeeded; only with readyWhen: Probe
	PhaseReleased    PhaseName = "released"     // the last parked SYN was released
	PhaseFirstSYNACK PhaseName = "first-synack" // the pod's first SYN-ACK went out
	PhaseFirstByte   PhaseName = "first-byte"   // the pod's first payload byte went out
)

// PhaseNames returns all phases in their usual order.
func PhaseNames() []PhaseName { return slices.Clone(phaseNames[:]) }

var phaseNames = [...]PhaseName{
	PhaseSYNSeen, PhaseTold, PhaseHandled, PhaseImage, PhaseSandbox, PhaseCreated, PhaseStarted,
	PhaseListening, PhaseReady, PhaseReleased, PhaseFirstSYNACK, PhaseFirstByte,
}

func phaseIndex(p PhaseName) int { return slices.Index(phaseNames[:], p) }

// Result is the outcome of a wake.
type Result string

// The results of a wake.
const (
	ResultRunning   Result = "running"   // in progress
	ResultWarm      Result = "warm"      // the pod listens
	ResultFailed    Result = "failed"    // clients were refused, for the Reason
	ResultCancelled Result = "cancelled" // put to sleep or deleted before the pod listened
)

// Waterfall is the record of one wake: when each phase ended.
type Waterfall struct {
	// Service is "namespace/name".
	Service string `json:"service"`
	// Number counts the wakes of the service since the controller started, from 1.
	Number uint64 `json:"number"`
	// Start is the wall-clock time of the first phase. The machine leaves it zero, as it has no clock.
	Start  time.Time `json:"start"`
	Result Result    `json:"result"`
	Reason string    `json:"reason,omitempty"`
	// Parked is the highest number of parked SYNs that a WAKE reported; Released is the number of released ones.
	Parked   uint32 `json:"parked"`
	Released uint32 `json:"released"`
	// SYNSeen is the time of the first phase.
	SYNSeen monotime.Time `json:"-"`
	// Phases are the ones that have ended, in order of time.
	Phases []Phase `json:"phases"`
}

// Phase is the end of one phase.
type Phase struct {
	Name PhaseName
	At   time.Duration // since PhaseSYNSeen
	Took time.Duration // since the end of the previous phase
}

type phaseJSON struct {
	Name PhaseName `json:"phase"`
	At   int64     `json:"at_us"`
	Took int64     `json:"took_us"`
}

// MarshalJSON writes {"phase": name, "at_us": At, "took_us": Took}, in whole microseconds.
func (p Phase) MarshalJSON() ([]byte, error) {
	return json.Marshal(phaseJSON{p.Name, p.At.Microseconds(), p.Took.Microseconds()})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (p *Phase) UnmarshalJSON(b []byte) error {
	var j phaseJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*p = Phase{j.Name, time.Duration(j.At) * time.Microsecond, time.Duration(j.Took) * time.Microsecond}
	return nil
}

// At returns when a phase ended, since PhaseSYNSeen, and whether it has ended.
func (w Waterfall) At(p PhaseName) (time.Duration, bool) {
	for _, q := range w.Phases {
		if q.Name == p {
			return q.At, true
		}
	}
	return 0, false
}

// Total is the time from PhaseSYNSeen to the end of the last phase.
func (w Waterfall) Total() time.Duration {
	if len(w.Phases) == 0 {
		return 0
	}
	return w.Phases[len(w.Phases)-1].At
}
