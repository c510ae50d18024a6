// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	"wangell.loutres.me/internal/monotime"
)

// Action is one of the structs below. A step returns them in the order in which they are listed
// here: nothing may come between a WakeAsked and its StartPod, and daemons hear of a pod's end
// before its clients are refused and before it gets its SIGTERM.
type Action interface{ action() }

// StartPod: start a pod of the service's present spec. It is answered by PhaseEnded, NetworkReady,
// and at last Started or StartFailed.
type StartPod struct{ Ref Ref }

// PublishBackends: tell the daemons all pods of the service.
type PublishBackends struct {
	Generation uint64 // grows with every PublishBackends of the service
	Pods       []Backend
	// Sharing is how many pods share what is parked: those that serve, and those that the wake of a crowd started and that do
	// not listen yet. 0: there are none of these, and nobody is to wait for another pod.
	Sharing int
}

// Backend is a pod as daemons shall see it.
type Backend struct {
	Ref   Ref
	State BackendState
}

// BackendState is what a daemon shall do with a pod.
type BackendState uint8

// The states of a backend, in order of its life.
const (
	BackendStarting BackendState = 1 // watch for LISTEN, then serve
	BackendServing  BackendState = 2 // it listens: give it flows
	BackendDraining BackendState = 3 // no new flow; open ones go on
)

// RefuseParked: answer the parked clients with an RST. Reason tells a user why.
type RefuseParked struct{ Reason string }

// StopPod: SIGTERM, SIGKILL after Grace, remove all of it. For a pod that is still being started:
// give the start up. It is answered by one StopDone, whatever became of the start.
type StopPod struct {
	Ref   Ref
	Grace time.Duration
}

// ArmTimer: deliver Timer at At, and forget the time given before. Zero: no timer.
type ArmTimer struct{ At monotime.Time }

// Record: the wake's waterfall is new (First) or knows more than before. News are the phases that
// no Record of this wake had yet.
type Record struct {
	Waterfall Waterfall
	First     bool
	News      []Phase
}

// Severity of a Report.
type Severity uint8

// The severities, as log/slog has them.
const (
	Info Severity = iota
	Warning
	Error
)

// Report: tell the user. Text does not name the service.
type Report struct {
	Severity Severity
	Text     string
}

func (StartPod) action()        {}
func (PublishBackends) action() {}
func (RefuseParked) action()    {}
func (StopPod) action()         {}
func (ArmTimer) action()        {}
func (Record) action()          {}
func (Report) action()          {}
