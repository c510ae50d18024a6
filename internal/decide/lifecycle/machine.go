// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"slices"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// maxPods bounds the pods of a service, including those that are ending and their remains. It is the capacity of one
// Backends message on the wire.
const maxPods = 64

// Machine is the state machine of one service. It is not safe for concurrent use.
type Machine struct {
	spec    Spec
	state   State
	message string // why the service is Failed, or other details of the state
	deleted bool
	lastEnd end // of a pod

	pods    []*pod // oldest first
	lastRef Ref
	desired int    // number of pods while Waking, Warm or Stopping
	rev     uint32 // counts the specs that needed new pods, and restarts
	revWhy  string // why the last one did, for users
	badRev  uint32 // the rev whose update failed: not retried while a pod of the old spec serves

	published published
	start     start
	ports     ports
	sleep     sleep
	freeze    freezing
	next      next
	backoff   failures
	surplusAt monotime.Time // when excess pods are removed; zero if there are none
	armed     monotime.Time // time of the last ArmTimer

	wakes    uint64    // number of wakes so far
	timeline *timeline // of the wake in progress, and of the last one while its pod lives
}

// end is what was last reported about the end of a pod.
type end struct {
	ref          Ref
	verb, reason string
}

// published is the last PublishBackends.
type published struct {
	generation uint64
	pods       []Backend
	sharing    int
}

// start is the state of pods being started, above all by the wake in progress.
type start struct {
	deadline monotime.Time // for the wake; zero for none
	after    monotime.Time // no pod is started before
	tries    int           // rounds of StartPods of this wake
	lastErr  error         // of the last failed start
}

// sleep is about going to sleep, while Stopping.
type sleep struct {
	forced bool // requested by a user: new packets do not change it
	at     monotime.Time
	why    string
}

// next is what follows once the service sleeps, or once an adopted pod listens.
type next struct {
	wake     *WakeAsked // clients wait for a pod
	replicas int        // the least number of pods of the next wake
	why      string     // the reason for replicas
}

// failures slows down wakes and starts that fail in a row.
type failures struct {
	wakes     int
	wakeRetry monotime.Time // wakes are refused until then
	crashes   int           // of single pods
	lastCrash monotime.Time
}

// freezing holds the machine's decisions about freezing. Whether a pod is frozen is part of the pod's state: the
// daemon of its home node thaws it by itself for a packet.
type freezing struct {
	seq    uint64        // of the last FreezePods
	on     bool          // it has frozen pods
	idle   IdleSeen      // what decided that
	stopAt monotime.Time // when the service is stopped if all its pods are frozen until then; zero for never
	used   monotime.Time // when the first of its frozen pods was thawed; zero if none was
	why    string        // why pods run that could be frozen, as last reported
}

// New returns the machine of a cold service. Its generations are above the given one, which should be higher than any
// that an earlier machine of the same service has published.
func New(spec Spec, generation uint64) *Machine {
	return &Machine{spec: spec, published: published{generation: generation}, freeze: freezing{seq: generation}}
}

// State returns the service's state.
func (m *Machine) State() State {
	if m.state == Warm && m.allFrozen() {
		return Frozen
	}
	return m.state
}

// Message explains the state where it needs an explanation, such as the reason for Failed; else it is empty.
func (m *Machine) Message() string { return m.message }

// Desired is the number of pods that the service should have now: 0 while it sleeps or goes to sleep.
func (m *Machine) Desired() int {
	if m.deleted || m.state != Waking && m.state != Warm {
		return 0
	}
	return m.desired
}

// Serving is the number of pods that get new flows.
func (m *Machine) Serving() int {
	return m.count(func(p *pod) bool { return p.serves() && p.progress == podConfirmed })
}

// Serves reports whether a pod gets new flows, or will once its home node's daemon reports that it listens.
func (m *Machine) Serves(r Ref) bool {
	p := m.pod(r)
	return p != nil && p.serves()
}

// Unready returns the last readinessProbe answer of a pod that listens but is not ready; ok is false if the pod is
// not in this state.
func (m *Machine) Unready(r Ref) (answer string, ok bool) {
	if p := m.pod(r); p != nil && p.is(podProbed) && p.life <= lifeServing {
		return p.lastAnswer(), true
	}
	return "", false
}

// UpdateFailed reports whether pods of an older spec, or from before a restart, go on serving because a new one failed.
func (m *Machine) UpdateFailed() bool {
	return m.badRev == m.rev && m.count(func(p *pod) bool { return p.serves() && p.rev != m.rev }) > 0
}

// Deleted reports whether the service was deleted. Its pods may still exist.
func (m *Machine) Deleted() bool { return m.deleted }

// Gone reports whether the service was deleted and nothing of it remains.
func (m *Machine) Gone() bool { return m.deleted && len(m.pods) == 0 }

// NextRef returns the number for a pod that the machine did not start (Adopted, Appeared).
func (m *Machine) NextRef() Ref { return m.lastRef + 1 }

// Pods returns the pods that are not removed yet, oldest first.
func (m *Machine) Pods() []Ref {
	refs := make([]Ref, len(m.pods))
	for i, p := range m.pods {
		refs[i] = p.ref
	}
	return refs
}

// PodState returns the state of a pod, PodExited if it is not there any more.
func (m *Machine) PodState(r Ref) PodState {
	if p := m.pod(r); p != nil {
		return p.state()
	}
	return PodExited
}

// Generation is the generation of the last PublishBackends.
func (m *Machine) Generation() uint64 { return m.published.generation }

// SkipGenerations makes the next generation higher than the given one. It is needed when the service moves to an
// address for which another machine has published.
func (m *Machine) SkipGenerations(to uint64) {
	m.published.generation = max(m.published.generation, to)
}

func (m *Machine) count(is func(*pod) bool) int {
	n := 0
	for _, p := range m.pods {
		if is(p) {
			n++
		}
	}
	return n
}

// allFrozen reports whether pods serve, and none of them runs or is being started.
func (m *Machine) allFrozen() bool {
	serving := 0
	for _, p := range m.pods {
		switch {
		case p.serves() && p.is(podFrozen):
			serving++
		case p.life <= lifeServing:
			return false
		}
	}
	return serving > 0
}

func (m *Machine) pod(r Ref) *pod {
	for _, p := range m.pods {
		if p.ref == r {
			return p
		}
	}
	return nil
}

func (m *Machine) newPod() *pod {
	m.lastRef++
	p := &pod{ref: m.lastRef, life: lifeStarting, rev: m.rev, grace: m.spec.Grace}
	m.pods = append(m.pods, p)
	return p
}

func (m *Machine) removePod(p *pod) {
	m.pods = slices.DeleteFunc(m.pods, func(q *pod) bool { return q == p })
}

// active is the number of pods that serve or will soon, without those that replace a pod of an older spec.
func (m *Machine) active() int {
	return m.count(func(p *pod) bool { return p.serves() || p.starts() })
}

// missing is the number of pods to start.
func (m *Machine) missing() int { return m.desired - m.active() }

// outdated reports whether to start a pod that replaces one of an older spec. Pods are replaced one at a time.
func (m *Machine) outdated() bool {
	return !m.spec.Rolls && !m.spec.Single && m.badRev != m.rev &&
		m.count((*pod).serves) == len(m.pods) &&
		m.count(func(p *pod) bool { return p.rev != m.rev }) > 0
}

// blocked reports whether new pods have to wait: because the runtime fails to remove many old ones, or because a pod
// that must not run beside its successor may still exist.
func (m *Machine) blocked() bool {
	return len(m.pods) >= maxPods || m.spec.Single && len(m.pods) > 0
}

// WaitsFor returns the pod whose end must come before another pod may start, if one is wanted; else false.
func (m *Machine) WaitsFor() (Ref, bool) {
	if m.spec.Single && !m.deleted && len(m.pods) > 0 && m.clientsWait() {
		return m.pods[0].ref, true
	}
	return 0, false
}

// StartWaits says what the start of a pod waits for that a wake needs; empty if that is not known, or if its process
// runs.
func (m *Machine) StartWaits() string {
	if m.state != Waking {
		return ""
	}
	for _, p := range m.pods {
		if p.startsReachable() && p.progress < podRunning && p.phases[phaseIndex(PhaseStarted)] == 0 && p.waits != "" {
			return p.waits
		}
	}
	return ""
}

// Lost returns the pod on a silent node that may still run and so keeps every other one from starting; false if there
// is none.
func (m *Machine) Lost() (Ref, bool) {
	for _, p := range m.pods {
		if p.is(podAway) && m.spec.Single && !m.deleted {
			return p.ref, true
		}
	}
	return 0, false
}

// clientsWait reports whether clients wait and no pod is starting.
func (m *Machine) clientsWait() bool {
	return m.state == Waking && m.count((*pod).starts) == 0 || m.state == Stopping && m.next.wake != nil
}

// mayStayAwake reports whether going to sleep can still be cancelled: pods are being drained for it, and are not
// stopped yet.
func (m *Machine) mayStayAwake() bool {
	return m.state == Stopping && m.count((*pod).drainsForSleep) > 0
}

// longestGrace bounds the time that the pods going to sleep may take to end.
func (m *Machine) longestGrace() time.Duration {
	longest := time.Duration(0)
	for _, p := range m.pods {
		if p.is(podSleeping) {
			longest = max(longest, p.grace)
		}
	}
	return longest
}

// victim returns the pod to remove first when scaling in; nil if there is none.
func (m *Machine) victim(is func(*pod) bool) *pod {
	var best *pod
	for _, p := range m.pods {
		if is(p) && (best == nil || p.missedLess(best, m.rev)) {
			best = p
		}
	}
	return best
}

// backends returns the pods to publish to daemons.
func (m *Machine) backends() []Backend {
	var view []Backend
	for _, p := range m.pods {
		if state, published := p.backend(); published {
			b := Backend{Ref: p.ref, State: state}
			if len(m.spec.More) > 0 {
				b.Open = p.open
			}
			view = append(view, b)
		}
	}
	return view
}

// sharing is PublishBackends.Sharing. Clients wait for a pod while another one serves only if several pods were started
// for a crowd.
func (m *Machine) sharing() int {
	if m.spec.BurstPerPod <= 0 {
		return 0
	}
	coming := m.count(func(p *pod) bool { return p.origin == originCrowd && p.starts() })
	if n := coming + m.count((*pod).serves); coming > 0 && n > 1 {
		return n
	}
	return 0
}
