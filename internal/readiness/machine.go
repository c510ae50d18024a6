// SPDX-License-Identifier: Apache-2.0

package readiness

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// wakePause is the shortest pause between two probes while a pod is not ready for the first time: clients wait.
const wakePause = 5 * time.Millisecond

// Change is what the answer to a probe changes.
type Change uint8

// The changes.
const (
	NoChange Change = iota
	Ready           // the pod gets new flows
	Unready         // the pod gets no new flows any more
)

// Machine decides from the answers to a pod's probes whether the pod is ready. It is pure: the caller runs the probes
// and passes the time. It is not safe for concurrent use.
type Machine struct {
	period, delay time.Duration
	success, fail int

	began  time.Time // of the pod, for initialDelaySeconds
	ready  bool
	served bool // it was ready at some time: since then probes run at their period
	run    int  // answers in a row that speak against the present state

	started, ended time.Time // of the last probe; zero if there was none
}

// NewMachine returns the machine of a pod that began at a time. ready is set for a pod that serves already. The probe
// has Kubernetes' defaults.
func NewMachine(p *corev1.Probe, began time.Time, ready bool) *Machine {
	seconds := func(n int32) time.Duration { return time.Duration(n) * time.Second }
	m := &Machine{
		period: seconds(p.PeriodSeconds), success: int(p.SuccessThreshold), fail: int(p.FailureThreshold),
		began: began, ready: ready, served: ready,
	}
	m.delay = seconds(p.InitialDelaySeconds)
	if ready {
		m.started = began // the first probe comes after a period
	}
	return m
}

// Ready reports whether the pod is ready.
func (m *Machine) Ready() bool { return m.ready }

// Next returns when the next probe runs. A pod that was never ready is probed again as soon as the last probe has
// ended, after a pause as long as that took: so probes use at most half of a CPU.
func (m *Machine) Next() time.Time {
	switch {
	case m.served:
		return m.started.Add(m.period)
	case m.started.IsZero():
		return m.began.Add(m.delay)
	}
	took := m.ended.Sub(m.started)
	return m.ended.Add(min(max(took, wakePause), max(m.period, wakePause)))
}

// Answered records the outcome of a probe that ran from one time to another.
func (m *Machine) Answered(started, ended time.Time, ok bool) Change {
	m.started, m.ended = started, ended
	if ok == m.ready {
		m.run = 0
		return NoChange
	}
	m.run++
	switch {
	case ok && m.run >= m.success:
		m.ready, m.served, m.run = true, true, 0
		return Ready
	case !ok && m.run >= m.fail:
		m.ready, m.run = false, 0
		return Unready
	}
	return NoChange
}
