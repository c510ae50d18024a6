// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/json"
	"slices"
	"time"

	"wangell.loutres.me/internal/monotime"
)

// PhaseName names a step of a wake by what has happened at its end.
type PhaseName string

// The phases of a wake, in the order in which they usually end.
const (
	PhaseSYNSeen     PhaseName = "syn-seen"     // the gate parked the first SYN
	PhaseTold        PhaseName = "told"         // the daemon's user space read the gate's event
	PhaseHandled     PhaseName = "handled"      // the controller got WAKE and asks for a pod
	PhaseImage       PhaseName = "image"        // the image is on the machine and unpacked
	PhaseSandbox     PhaseName = "sandbox"      // network namespace, device and address exist
	PhaseCreated     PhaseName = "created"      // the container exists, its process is not started
	PhaseStarted     PhaseName = "started"      // the process runs
	PhaseListening   PhaseName = "listening"    // its socket listens
	PhaseReleased    PhaseName = "released"     // the last parked SYN was let go
	PhaseFirstSYNACK PhaseName = "first-synack" // the pod's first SYN-ACK went out
	PhaseFirstByte   PhaseName = "first-byte"   // the pod's first payload byte went out
)

// PhaseNames are all phases in their usual order.
func PhaseNames() []PhaseName { return slices.Clone(phaseNames[:]) }

var phaseNames = [...]PhaseName{
	PhaseSYNSeen, PhaseTold, PhaseHandled, PhaseImage, PhaseSandbox, PhaseCreated, PhaseStarted,
	PhaseListening, PhaseReleased, PhaseFirstSYNACK, PhaseFirstByte,
}

func phaseIndex(p PhaseName) int { return slices.Index(phaseNames[:], p) }

// Result is what became of a wake.
type Result string

// The results of a wake.
const (
	ResultRunning   Result = "running"   // it is under way
	ResultWarm      Result = "warm"      // the pod listens
	ResultFailed    Result = "failed"    // clients were refused; Reason tells why
	ResultCancelled Result = "cancelled" // put to sleep or deleted before it was done
)

// Waterfall is one wake: which phase ended when.
type Waterfall struct {
	// Service is "namespace/name".
	Service string `json:"service"`
	// Number counts the wakes of the service since the controller started, from 1.
	Number uint64 `json:"number"`
	// Start is the wall-clock time of the first phase. The machine leaves it zero: it has no clock.
	Start  time.Time `json:"start"`
	Result Result    `json:"result"`
	Reason string    `json:"reason,omitempty"`
	// Parked is the highest number of parked SYNs that a WAKE told; Released is how many were let go.
	Parked   uint32 `json:"parked"`
	Released uint32 `json:"released"`
	// SYNSeen is the time of the first phase.
	SYNSeen monotime.Time `json:"-"`
	// Phases are those that ended, in order of time.
	Phases []Phase `json:"phases"`
}

// Phase is when a phase ended, and how long it took since the end of the one before it.
type Phase struct {
	Name PhaseName
	At   time.Duration // since SYN seen
	Took time.Duration
}

type phaseJSON struct {
	Name PhaseName `json:"phase"`
	At   int64     `json:"at_us"`
	Took int64     `json:"took_us"`
}

// MarshalJSON writes {"phase": name, "at_us": n, "took_us": n}, in whole microseconds since SYN
// seen and since the phase before.
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

// At returns when a phase ended, since SYN seen, and whether it did.
func (w Waterfall) At(p PhaseName) (time.Duration, bool) {
	for _, q := range w.Phases {
		if q.Name == p {
			return q.At, true
		}
	}
	return 0, false
}

// Total is the time from SYN seen to the end of the last phase.
func (w Waterfall) Total() time.Duration {
	if len(w.Phases) == 0 {
		return 0
	}
	return w.Phases[len(w.Phases)-1].At
}

// story collects the times of the wake under way, and of the last one while its pod lives.
type story struct {
	number           uint64
	ref              Ref // the first pod of the wake: the one that listens first, or the first started; 0 if there is none
	result           Result
	reason           string
	parked, released uint32
	at               [len(phaseNames)]monotime.Time
	recorded         uint16 // bit i: phase i was in a Record
	begun            bool   // there was a Record
}

// mark notes when a phase ended, once. It reports whether that was news.
func (s *story) mark(p PhaseName, at monotime.Time) bool {
	i := phaseIndex(p)
	if i < 0 || at == 0 || s.at[i] != 0 {
		return false
	}
	s.at[i] = at
	return true
}

// restart forgets the phases of a pod that was given up, but not how the wake began.
func (s *story) restart() {
	s.ref = 0
	for i := phaseIndex(PhaseImage); i < len(s.at); i++ {
		s.at[i] = 0
		s.recorded &^= 1 << i
	}
}

// follow makes a pod the one that the story is about.
func (s *story) follow(p *pod) {
	if s.ref == p.ref {
		return
	}
	s.restart()
	s.ref = p.ref
	for i, at := range p.phases {
		if s.at[i] == 0 {
			s.at[i] = at
		}
	}
}

// record makes the Record of what is known now.
func (s *story) record(service string) Record {
	r := Record{Waterfall: s.waterfall(service), First: !s.begun}
	s.begun = true
	for _, p := range r.Waterfall.Phases {
		if bit := uint16(1) << phaseIndex(p.Name); s.recorded&bit == 0 {
			s.recorded |= bit
			r.News = append(r.News, p)
		}
	}
	return r
}

// lastOf returns the last phase that ended, by its time; the first one if none did.
func lastOf(at [len(phaseNames)]monotime.Time) PhaseName {
	best := 0
	for i, t := range at {
		if t != 0 && t >= at[best] {
			best = i
		}
	}
	return phaseNames[best]
}

func (s *story) waterfall(service string) Waterfall {
	seen := s.at[0]
	w := Waterfall{
		Service: service, Number: s.number, Result: s.result, Reason: s.reason,
		Parked: s.parked, Released: s.released, SYNSeen: seen,
	}
	for i, at := range s.at {
		if at != 0 {
			// A daemon on another machine may have a clock that is a little ahead.
			w.Phases = append(w.Phases, Phase{Name: phaseNames[i], At: max(0, at.Sub(seen))})
		}
	}
	slices.SortStableFunc(w.Phases, func(a, b Phase) int { return int(a.At - b.At) })
	for i := 1; i < len(w.Phases); i++ {
		w.Phases[i].Took = w.Phases[i].At - w.Phases[i-1].At
	}
	return w
}
