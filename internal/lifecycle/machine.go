// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"wangell.loutres.me/internal/monotime"
)

const (
	// quietTimeout is how long gates may take to answer that a drained pod gets no new flow.
	quietTimeout = 5 * time.Second
	// maxBackoff bounds the time between two wakes that fail.
	maxBackoff = time.Minute
	// updateImageTimeout is how long the image of a new spec may take while the old pod serves: nobody
	// waits for it.
	updateImageTimeout = 15 * time.Minute
	// retryDelay is the first pause before a start is tried again within one wake, because the
	// runtime did not answer; it doubles up to maxRetryDelay.
	retryDelay    = 100 * time.Millisecond
	maxRetryDelay = 2 * time.Second
	// maxPods bounds the pods of a service, those that go and their remains included. It is what one Backends message of
	// the wire can tell.
	maxPods = 64
	// leaveTimeout is how long beyond its grace a pod may take that somebody else takes away.
	leaveTimeout = time.Minute
	// surplusPatience is how long there may be more pods than are wanted, where others start pods, too: of a pod that
	// replaces one which somebody takes away, the machine may hear before it hears of that one.
	surplusPatience = 3 * time.Second
)

// podState is what the machine has done about a pod.
type podState uint8

const (
	podStarting podState = iota // StartPod, or it appeared
	podServing                  // it listens, or was adopted
	podDraining                 // daemons were told to drain it
	podStopping                 // StopPod
)

type pod struct {
	ref       Ref
	state     podState
	network   bool // daemons can be told of it
	started   bool // its process runs
	listened  bool // its socket was seen to listen, or it was adopted
	confirmed bool // its socket was seen to listen since the machine knows it
	exited    bool // its process ended
	quiet     bool // no gate gives it a new flow
	crowd     bool // it was started while none served
	surge     bool // it starts to replace one of an older spec, which serves until then
	sleeping  bool // it ends because the service is to sleep
	foreign   bool // somebody else started it
	leaving   bool // somebody else takes it away
	away      bool // nothing is heard of its home node
	rev       uint32
	grace     time.Duration
	open      uint32        // its open flows, as last told
	idle      monotime.Time // sleeping: its last packet, as its node had told before the drain
	drainGen  uint64        // the first generation that told to drain it
	by        monotime.Time // zero, or when what its state waits for must have come
	phases    [len(phaseNames)]monotime.Time
}

// serves and starts tell whether a pod counts as one that serves, or soon will.
func (p *pod) serves() bool { return p.state == podServing && !p.away }
func (p *pod) starts() bool { return p.state == podStarting && !p.away && !p.surge }

// Machine is the state machine of one service. Make one with New. It is not safe for use by several
// goroutines at once.
type Machine struct {
	spec    Spec
	state   State
	want    int    // how many pods there shall be, while Waking, Warm or Stopping
	rev     uint32 // counts the specs that need new pods
	badRev  uint32 // a spec whose update failed: not tried again while the old pod serves
	lastRef Ref
	gen     uint64
	view    []Backend // as last published
	sharing int       // likewise

	pods []*pod // oldest first

	// A wake under way.
	wakeBy  monotime.Time // zero, or when the wake must be done
	startAt monotime.Time // no pod is started before
	tries   int           // rounds of StartPods of this wake
	lastErr error         // of the last try

	// While Stopping.
	sleepAsked bool // a user asked: new packets do not change it
	sleptAt    monotime.Time
	sleepWhy   string
	pending    *WakeAsked // clients wait: for the next pod, or in Warm for an adopted one to listen
	again      int        // how many pods the next wake has at least, and why
	againWhy   string

	failures  int
	retryAt   monotime.Time
	crashes   int // of single pods, in a row
	lastCrash monotime.Time
	surplusAt monotime.Time // zero, or when pods that are more than wanted are taken away
	message   string        // why Failed, or what else the state does not tell

	deleted bool
	armed   monotime.Time
	wakes   uint64
	story   *story
}

// New returns the machine of a cold service. Generations begin above generation, which should be
// higher than any that an earlier machine of the service has published.
func New(spec Spec, generation uint64) *Machine {
	return &Machine{spec: spec, gen: generation}
}

// State returns the state.
func (m *Machine) State() State { return m.state }

// Message tells why the state is as it is, where that is of interest; else it is empty.
func (m *Machine) Message() string { return m.message }

// Desired is how many pods the service is to have now: 0 while it sleeps or goes to sleep.
func (m *Machine) Desired() int {
	if m.deleted || m.state != Waking && m.state != Warm {
		return 0
	}
	return m.want
}

// Serving is how many pods have new flows.
func (m *Machine) Serving() int {
	return m.count(func(p *pod) bool { return p.serves() && p.confirmed })
}

// Serves tells whether a pod gets new flows, or will as soon as its daemon says that it listens.
func (m *Machine) Serves(r Ref) bool {
	p := m.pod(r)
	return p != nil && p.serves()
}

// Deleted reports whether the service was deleted; its pods may not be gone yet.
func (m *Machine) Deleted() bool { return m.deleted }

// Gone reports whether the service is deleted and nothing of it remains.
func (m *Machine) Gone() bool { return m.deleted && len(m.pods) == 0 }

// NextRef is a number for a pod that the machine has not asked for.
func (m *Machine) NextRef() Ref { return m.lastRef + 1 }

// Pods returns the pods that are not yet removed, oldest first.
func (m *Machine) Pods() []Ref {
	refs := make([]Ref, len(m.pods))
	for i, p := range m.pods {
		refs[i] = p.ref
	}
	return refs
}

// Generation is that of the last PublishBackends.
func (m *Machine) Generation() uint64 { return m.gen }

// SkipGenerations makes the next generation higher than the given one: the service comes to an
// address for which another one has published.
func (m *Machine) SkipGenerations(to uint64) { m.gen = max(m.gen, to) }

// Step takes an event at a time and returns what to do about it.
func (m *Machine) Step(ev Event, now monotime.Time) []Action {
	t := turn{Machine: m, now: now}
	t.handle(ev)
	t.settle()
	return t.actions()
}

// turn is one step: what it decides is collected and put in order at its end.
type turn struct {
	*Machine
	now     monotime.Time
	starts  []StartPod
	publish bool // even if nothing changed
	refuse  string
	stops   []StopPod
	record  bool     // the story has news
	records []Record // of stories that were replaced
	reports []Report
}

func (t *turn) handle(ev Event) {
	switch e := ev.(type) {
	case WakeAsked:
		t.wakeAsked(e)
	case PhaseEnded:
		t.mark(e.Ref, e.Phase, e.At)
		if p := t.pod(e.Ref); p != nil && p.surge && p.state == podStarting && e.Phase == PhaseImage {
			p.by = t.now.Add(t.spec.WakeTimeout)
		}
	case NetworkReady:
		if p := t.pod(e.Ref); p != nil {
			p.network = true
		}
	case Started:
		if p := t.pod(e.Ref); p != nil {
			p.started = true
		}
	case StartFailed:
		t.startFailed(e)
	case Listening:
		t.listening(e)
	case Trace:
		t.mark(e.Ref, PhaseReleased, e.Released)
		t.mark(e.Ref, PhaseFirstSYNACK, e.FirstSYNACK)
		t.mark(e.Ref, PhaseFirstByte, e.FirstByte)
		if s := t.story; s != nil && s.ref == e.Ref && e.ReleasedN > s.released {
			s.released, t.record = e.ReleasedN, true
		}
	case PodExited:
		t.podExited(e)
	case IdleSeen:
		t.idleSeen(e)
	case Quiet:
		t.quiet(e)
	case FlowsSeen:
		if p := t.pod(e.Ref); p != nil {
			p.open = e.Open
			t.drained(p)
		}
	case StopDone:
		t.gone(e.Ref)
	case SleepAsked:
		t.sleep("put to sleep by a user")
	case Scale:
		t.scale(e)
	case SpecChanged:
		t.specChanged(e)
	case Deleted:
		t.delete()
	case Adopted:
		t.adopt(e)
	case Appeared:
		t.appeared(e.Ref)
	case Leaving:
		t.leaving(e.Ref)
	case Away:
		t.away(e.Ref)
	case Back:
		t.back(e.Ref)
	case Rejoined:
		t.publish = true
		for _, p := range t.pods {
			if p.sleeping && p.state == podDraining {
				p.by = t.now.Add(quietTimeout)
			}
		}
	case Timer:
		t.timer(e)
	}
}

// settle starts what has become possible: the pods that are missing, or the replacement of a pod whose spec is out of
// date.
func (t *turn) settle() {
	if t.deleted {
		return
	}
	t.watchSurplus()
	if t.spec.Min > 0 && (t.state == Cold || t.state == Failed) && t.now >= max(t.startAt, t.retryAt) {
		t.beginAsked(t.spec.Min, fmt.Sprintf("at least %s wanted", counted(uint32(t.spec.Min), "pod")))
	}
	due := t.now >= t.startAt && !t.blocked()
	switch {
	case t.state == Waking && due && t.missing() > 0 && (t.tries == 0 || t.now < t.wakeBy):
		if t.tries == 0 {
			t.wakeBy = t.now.Add(t.spec.WakeTimeout)
		}
		t.tries++
		for t.missing() > 0 && len(t.pods) < maxPods {
			p := t.startPod(t.wakeBy)
			p.crowd = true
			if t.story != nil && t.story.ref == 0 {
				t.story.ref = p.ref
			}
		}
	case t.state == Warm && due && t.missing() > 0:
		for t.missing() > 0 && len(t.pods) < maxPods {
			t.startPod(t.now.Add(t.spec.WakeTimeout))
		}
	case t.state == Warm && t.outdated():
		t.startPod(t.now.Add(updateImageTimeout + t.spec.WakeTimeout)).surge = true
		t.report(Info, "the manifest changed: a new pod starts, the old one serves until it listens")
	}
}

// missing is how many pods have to be started.
func (m *Machine) missing() int { return m.want - m.active() }

// active is how many pods serve or are being started, those for an update left out.
func (m *Machine) active() int {
	return m.count(func(p *pod) bool { return p.serves() || p.starts() })
}

// outdated reports whether it is time to start a pod that replaces one of an older spec: one after the other.
func (m *Machine) outdated() bool {
	return !m.spec.Rolls && m.badRev != m.rev &&
		m.count(func(p *pod) bool { return p.serves() }) == len(m.pods) &&
		m.count(func(p *pod) bool { return p.rev != m.rev }) > 0
}

// blocked reports whether new pods have to wait: the runtime does not get rid of the remains of many; or a pod that got
// its SIGTERM still runs while none serves, and the next one may need the same volumes to itself.
func (m *Machine) blocked() bool {
	return len(m.pods) >= maxPods || !m.spec.Rolls && m.state == Waking &&
		m.count(func(p *pod) bool { return p.state == podStopping && !p.exited }) > 0
}

// actions puts what was decided in order.
func (t *turn) actions() []Action {
	var out []Action
	for _, s := range t.starts {
		out = append(out, s)
	}
	if view, n := t.backends(), t.shares(); t.publish || !slices.Equal(view, t.view) || n != t.sharing && len(view) > 0 {
		t.gen++
		t.view, t.sharing = view, n
		out = append(out, PublishBackends{Generation: t.gen, Pods: slices.Clone(view), Sharing: n})
	}
	if t.refuse != "" {
		out = append(out, RefuseParked{t.refuse})
	}
	for _, s := range t.stops {
		out = append(out, s)
	}
	if at := t.deadline(); at != t.armed {
		t.armed = at
		out = append(out, ArmTimer{at})
	}
	t.tell(nil)
	for _, r := range t.records {
		out = append(out, r)
	}
	for _, r := range t.reports {
		out = append(out, r)
	}
	return out
}

// tell records what is new of the story, and goes on with another one. A wake that ended badly has no more news.
func (t *turn) tell(next *story) {
	if t.record && t.story != nil {
		t.records = append(t.records, t.story.record(t.spec.Name))
	}
	t.record = false
	if next != nil || t.state == Cold || t.state == Failed {
		t.story = next
	}
}

// backends is what daemons shall know now. A pod that never listened is not theirs to drain; one
// whose process ended may still owe its clients the last segments.
func (m *Machine) backends() []Backend {
	var view []Backend
	for _, p := range m.pods {
		switch {
		case p.state == podStarting && p.network, p.serves() && !p.confirmed:
			view = append(view, Backend{p.ref, BackendStarting})
		case p.serves():
			view = append(view, Backend{p.ref, BackendServing})
		case p.state >= podServing && p.listened:
			view = append(view, Backend{p.ref, BackendDraining})
		}
	}
	return view
}

// shares is how many pods share what is parked (PublishBackends). Only a service that has several pods started for a crowd
// makes clients wait for a pod while another one serves.
func (m *Machine) shares() int {
	if m.spec.BurstPerPod <= 0 {
		return 0
	}
	coming := m.count(func(p *pod) bool { return p.crowd && p.starts() })
	if n := coming + m.count((*pod).serves); coming > 0 && n > 1 {
		return n
	}
	return 0
}

// deadline is the earliest time at which something is due.
func (t *turn) deadline() monotime.Time {
	m := t.Machine
	var first monotime.Time
	at := func(t monotime.Time) {
		if t != 0 && (first == 0 || t < first) {
			first = t
		}
	}
	later := func(a monotime.Time) {
		if a > t.now {
			at(a)
		}
	}
	for _, p := range m.pods {
		at(p.by)
	}
	if m.deleted {
		return first
	}
	at(m.surplusAt)
	if m.waiting() {
		at(m.wakeBy)
	}
	if (m.state == Waking || m.state == Warm) && m.missing() > 0 && !m.blocked() {
		later(m.startAt)
	}
	if m.spec.Min > 0 && (m.state == Cold || m.state == Failed) {
		later(max(m.startAt, m.retryAt))
	}
	return first
}

// waiting reports whether clients wait while no pod is being started.
func (m *Machine) waiting() bool {
	return m.state == Waking && m.count((*pod).starts) == 0 || m.state == Stopping && m.pending != nil
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
	p := &pod{ref: m.lastRef, rev: m.rev, grace: m.spec.Grace}
	m.pods = append(m.pods, p)
	return p
}

func (t *turn) startPod(by monotime.Time) *pod {
	p := t.newPod()
	p.by = by
	t.starts = append(t.starts, StartPod{p.ref})
	return p
}

func (t *turn) stop(p *pod, grace time.Duration) {
	p.by = 0
	if p.state != podStopping {
		p.state = podStopping
		t.stops = append(t.stops, StopPod{p.ref, grace})
	}
}

func (t *turn) drain(p *pod, wait time.Duration) {
	p.state, p.quiet, p.drainGen, p.by = podDraining, false, t.gen+1, t.now.Add(wait)
	t.publish = t.publish || p.listened // it may look like a drained one already
}

// mark notes when a phase of a pod ended; it belongs to the story if the pod does.
func (t *turn) mark(r Ref, name PhaseName, at monotime.Time) {
	p, i := t.pod(r), phaseIndex(name)
	if p != nil && i >= 0 && p.phases[i] == 0 {
		p.phases[i] = at
	}
	if t.story != nil && t.story.ref == r && t.story.mark(name, at) {
		t.record = true
	}
}

func (t *turn) report(s Severity, format string, args ...any) {
	t.reports = append(t.reports, Report{s, fmt.Sprintf(format, args...)})
}
