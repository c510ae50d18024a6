// SPDX-License-Identifier: Apache-2.0

package readiness

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// wakePause is the shortest pause between two probes while a pod was never ready: clients wait.
const wakePause = 5 * time.Millisecond

// Change is the effect of a probe's answer.
type Change uint8

// The changes.
const (
	NoChange Change = iota
	Ready           // the pod gets new flows
	Unready         // the pod gets no further flows
	Failed          // its startupProbe has not succeeded in time: the pod should be ended
)

// Machine decides from the answers to a pod's probes whether the pod is ready. It is pure: the caller runs the probes
// and passes the time. It is not safe for concurrent use.
type Machine struct {
	probe, startup rules

	began  time.Time // of the pod, for initialDelaySeconds
	stage  stage
	ready  bool
	failed bool // the startupProbe has not succeeded in time
	run    int  // answers in a row that speak against the present state

	started, ended time.Time // of the last probe of this stage; zero if there was none
}

// stage is what a pod has achieved. It only increases.
type stage uint8

const (
	stageStarting stage = iota // its startupProbe has not succeeded
	stageStarted               // it has no startupProbe, or that has succeeded
	stageServed                // it was ready at some time: since then probes run at their period
)

// rules are the numbers of a probe.
type rules struct {
	period, delay time.Duration
	success, fail int
}

func rulesOf(p *corev1.Probe) rules {
	seconds := func(n int32) time.Duration { return time.Duration(n) * time.Second }
	return rules{
		seconds(p.PeriodSeconds), seconds(p.InitialDelaySeconds), int(p.SuccessThreshold), int(p.FailureThreshold),
	}
}

// NewMachine returns the machine of a pod that began at a time. ready is set for a pod that serves already. The probes
// have Kubernetes' defaults.
func NewMachine(s Spec, began time.Time, ready bool) *Machine {
	m := &Machine{probe: rulesOf(s.Probe), began: began, stage: stageStarted, ready: ready}
	switch {
	case ready:
		m.stage = stageServed
		m.started = began // the first probe comes after a period
	case s.Startup != nil:
		m.stage, m.startup = stageStarting, rulesOf(s.Startup)
	}
	return m
}

// Ready reports whether the pod is ready.
func (m *Machine) Ready() bool { return m.ready }

// Starting reports whether the next probe is the startupProbe.
func (m *Machine) Starting() bool { return m.stage == stageStarting }

// Failed reports whether the startupProbe has not succeeded in time.
func (m *Machine) Failed() bool { return m.failed }

// Next returns when the next probe runs. A pod that was never ready is probed again as soon as the last probe has
// ended, after a pause as long as that took: so probes use at most half of a CPU.
func (m *Machine) Next() time.Time {
	r := m.probe
	if m.stage == stageStarting {
		r = m.startup
	}
	switch {
	case m.stage == stageServed:
		return m.started.Add(r.period)
	case m.started.IsZero():
		return m.began.Add(r.delay)
	}
	took := m.ended.Sub(m.started)
	return m.ended.Add(min(max(took, wakePause), max(r.period, wakePause)))
}

// Answered records the outcome of the probe that was next, which ran from one time to another.
func (m *Machine) Answered(started, ended time.Time, ok bool) Change {
	m.started, m.ended = started, ended
	if m.stage == stageStarting {
		return m.startupAnswered(ok)
	}
	if ok == m.ready {
		m.run = 0
		return NoChange
	}
	m.run++
	switch {
	case ok && m.run >= m.probe.success:
		m.ready, m.stage, m.run = true, stageServed, 0
		return Ready
	case !ok && m.run >= m.probe.fail:
		m.ready, m.run = false, 0
		return Unready
	}
	return NoChange
}

// startupAnswered is Answered for a startupProbe. Its first success ends the stage.
func (m *Machine) startupAnswered(ok bool) Change {
	if ok {
		m.stage, m.failed = stageStarted, false
		m.started, m.ended = time.Time{}, time.Time{}
		return NoChange
	}
	r := m.startup
	if m.failed || m.ended.Before(m.began.Add(r.delay+time.Duration(r.fail)*r.period)) {
		return NoChange
	}
	m.failed = true
	return Failed
}
