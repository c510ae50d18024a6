// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
)

// Action is one of the structs below. A step returns actions in the order of this list, so that nothing delays a
// StartPod, and daemons learn that a pod ends before its clients are refused and before it gets SIGTERM.
type Action interface{ action() }

// StartPod starts a pod of the service's current spec. It is answered by PhaseEnded and NetworkReady, and finally by
// Started or StartFailed.
type StartPod struct{ Ref Ref }

// PublishBackends sends the complete list of the service's pods to the daemons.
type PublishBackends struct {
	// Generation increases with every PublishBackends of the service.
	Generation uint64
	Pods       []Backend
	// Sharing is the number of pods that share the parked SYNs: serving pods, plus pods started for the crowd of a wake
	// that do not listen yet. Zero means that no such pod is starting, and no client has to wait for another pod.
	Sharing int
}

// Backend is a pod as daemons see it. Its State is PodStarting, PodServing or PodDraining.
type Backend struct {
	Ref   Ref
	State PodState
	// Open are the ports of the service for which the pod listens, if the service has several; otherwise none.
	Open PortSet
}

// RefuseParked answers the parked clients with an RST. Reason is for users.
type RefuseParked struct {
	Reason string
	// Ports are those whose clients are refused; empty for all ports.
	Ports PortSet
}

// StopPod stops a pod, with SIGTERM and after Grace SIGKILL, and removes what remains of it. A start in progress is
// cancelled. It is answered by exactly one StopDone, whatever the start's outcome.
type StopPod struct {
	Ref   Ref
	Grace time.Duration
}

// ArmTimer asks for a Timer event at At, instead of any time given before. Zero means no timer.
type ArmTimer struct{ At monotime.Time }

// Record carries the waterfall of a wake that has begun (First) or made progress.
type Record struct {
	Waterfall Waterfall
	First     bool
	// News are the phases that are new in this Record.
	News []Phase
}

// FreezePods freezes pods, and thaws all others of the service. The daemons answer with a FrozenSeen for each pod.
type FreezePods struct {
	// Seq increases with every FreezePods of the service.
	Seq  uint64
	Pods []FrozenPod
}

// FrozenPod is a pod to freeze, unless it has had a packet since LastPacket.
type FrozenPod struct {
	Ref        Ref
	LastPacket monotime.Time
}

// Severity is the severity of a Report.
type Severity uint8

// The severities of a Report.
const (
	Info Severity = iota
	Warning
	Error
)

// Report is a message for users. Text does not name the service.
type Report struct {
	Reason   v1alpha1.EventReason // empty if it is worth no Event
	Severity Severity
	Text     string
}

func (StartPod) action()        {}
func (PublishBackends) action() {}
func (RefuseParked) action()    {}
func (StopPod) action()         {}
func (FreezePods) action()      {}
func (ArmTimer) action()        {}
func (Record) action()          {}
func (Report) action()          {}
