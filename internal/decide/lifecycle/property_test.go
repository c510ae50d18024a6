// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// world models the effect of a machine's actions on a runtime, a gate and clients, as far as it takes to check the
// invariants.
type world struct {
	t        *testing.T
	m        *Machine
	now      monotime.Time
	armed    monotime.Time
	gen      uint64
	freeze   uint64
	lastRef  Ref
	view     []Backend
	sharing  int
	parked   bool         // clients wait
	starting map[Ref]bool // StartPod was issued, and not answered, stopped or exited yet
	live     map[Ref]bool // their process may run and was not asked to stop
	stopped  map[Ref]bool // StopPod was issued and not answered yet
	others   map[Ref]bool // started from outside, drained or unreachable: not counted against the bounds
	spec     Spec
	history  []string
}

// specs are chosen by the first byte of a script.
var specs = []Spec{
	{},
	{Max: 3, BurstPerPod: 50},
	{Min: 1, Max: 4},
	{Min: 2, Max: 5, DrainTimeout: 3 * time.Second, Rolls: true},
	{Max: 8, BurstPerPod: 100, Rolls: true},
	{Single: true},
	{Single: true, Min: 1, Volume: "data"},
}

func newWorld(t *testing.T, choice byte) *world {
	spec := specs[int(choice)%len(specs)]
	if choice >= 128 {
		spec.FreezeAfter, spec.IdleTimeout = 5*time.Second, time.Minute
	}
	spec.Name, spec.Port, spec.WakeTimeout, spec.Grace = testSpec.Name, testSpec.Port, testSpec.WakeTimeout, testSpec.Grace
	return &world{t: t, m: New(spec, 1000), now: t0, gen: 1000, spec: spec,
		starting: map[Ref]bool{}, live: map[Ref]bool{}, stopped: map[Ref]bool{}, others: map[Ref]bool{}}
}

func (w *world) fatal(format string, args ...any) {
	w.t.Helper()
	w.t.Log("\n" + strings.Join(w.history, "\n"))
	w.t.Fatalf(format, args...)
}

func (w *world) step(ev Event) {
	switch e := ev.(type) {
	case WakeAsked:
		w.parked = true
	case Listening:
		delete(w.starting, e.Ref)
		if slices.Contains(w.view, Backend{Ref: e.Ref, State: PodStarting}) {
			w.parked = false // the daemon serves it without another message
		}
	case StartFailed:
		delete(w.starting, e.Ref)
		delete(w.live, e.Ref)
	case Exited:
		delete(w.starting, e.Ref)
		delete(w.live, e.Ref)
	case StopDone:
		delete(w.starting, e.Ref)
		delete(w.live, e.Ref)
		delete(w.stopped, e.Ref)
	case Adopted:
		w.found(e.Ref)
	case Appeared:
		w.found(e.Ref)
	case Leaving:
		w.others[e.Ref] = true
	case Away:
		w.others[e.Ref] = true
	}
	actions := w.m.Step(ev, w.now)
	w.history = append(w.history, fmt.Sprintf("%s %T%+v → %s: %s", since(w.now), ev, ev, w.m.State(), words(actions)))
	for _, a := range actions {
		w.apply(a)
	}
	if len(w.m.Pods()) > maxPods {
		w.fatal("%d pods", len(w.m.Pods()))
	}
	own := 0
	for r := range w.live {
		if !slices.Contains(w.m.Pods(), r) {
			w.fatal("pod %d lives, and the machine does not know it", r)
		}
		if !w.others[r] {
			own++
		}
	}
	if w.spec.Single && len(w.starting) > 1 {
		w.fatal("pods %v start at once", w.starting)
	}
	if own > w.spec.clamp(MaxReplicas)+1 { // one more for an update
		w.fatal("pods %v live at once, pods from outside: %v", w.live, w.others)
	}
	if n := w.m.sharing(); len(w.view) > 0 && n != w.sharing || n == 1 || n > maxPods {
		w.fatal("%d pods share the parked SYNs, %d are published", n, w.sharing)
	}
	if w.sharing > 0 && len(w.view) > 0 && w.m.count((*pod).starts) == 0 {
		w.fatal("clients wait for another pod, and none is being started")
	}
	if d := w.m.Desired(); d < 0 || d > MaxReplicas {
		w.fatal("%d pods desired", d)
	}
	if w.m.State() == Warm && w.m.count((*pod).serves) == 0 {
		w.fatal("warm, and no pod serves")
	}
	if s := w.m.State(); s == Frozen && w.m.count((*pod).starts) > 0 {
		w.fatal("frozen, and pods start")
	}
	if w.m.State() == Waking && w.m.count((*pod).serves) > 0 {
		w.fatal("waking, and a pod serves")
	}
}

// found adds a pod that the machine did not start.
func (w *world) found(r Ref) {
	if r > w.lastRef && len(w.m.Pods()) < maxPods {
		w.lastRef, w.live[r], w.others[r] = r, true, true
	}
}

func (w *world) apply(a Action) {
	switch a := a.(type) {
	case StartPod:
		if n := len(w.m.Pods()); w.spec.Single && n != 1 {
			w.fatal("StartPod %d while there are %d pods", a.Ref, n)
		}
		if a.Ref <= w.lastRef {
			w.fatal("StartPod %d after %d", a.Ref, w.lastRef)
		}
		w.lastRef = a.Ref
		w.starting[a.Ref], w.live[a.Ref] = true, true
	case PublishBackends:
		if a.Generation <= w.gen {
			w.fatal("generation %d after %d", a.Generation, w.gen)
		}
		w.gen, w.view, w.sharing = a.Generation, a.Pods, a.Sharing
		for _, b := range a.Pods {
			switch b.State {
			case PodServing:
				w.parked = false
			case PodDraining:
				w.others[b.Ref] = true
			}
		}
	case RefuseParked:
		if a.Reason == "" {
			w.fatal("refused without a reason")
		}
		w.parked = false
	case StopPod:
		if w.stopped[a.Ref] {
			w.fatal("StopPod %d twice", a.Ref)
		}
		w.stopped[a.Ref] = true
		delete(w.starting, a.Ref)
		delete(w.live, a.Ref)
	case ArmTimer:
		w.armed = a.At
	case FreezePods:
		if a.Seq <= w.freeze {
			w.fatal("decision %d after %d", a.Seq, w.freeze)
		}
		w.freeze = a.Seq
		for _, p := range a.Pods {
			if !w.live[p.Ref] {
				w.fatal("pod %d is frozen, and does not live", p.Ref)
			}
		}
	}
}

// chaos makes an event from two bytes: any event, for any pod.
func (w *world) chaos(kind, arg byte) Event {
	ref := Ref(max(0, int(w.lastRef)+1-int(arg%6)))
	recent := w.now.Add(-time.Duration(arg) * time.Second)
	switch kind % 33 {
	case 0, 1, 2:
		return WakeAsked{Parked: uint32(arg), SYNSeen: w.now}
	case 3:
		return PhaseEnded{ref, phaseNames[int(arg)%len(phaseNames)], w.now}
	case 4:
		return NetworkReady{ref}
	case 5:
		if arg%2 == 0 {
			return Sockets{ref, []netip.AddrPort{netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(arg))}}
		}
		return Waits{ref, "for good"}
	case 6:
		return Started{ref}
	case 7:
		return StartFailed{ref, errors.New("no"), arg%2 == 0}
	case 8, 9:
		return Listening{Ref: ref, At: w.now}
	case 10:
		return Trace{Ref: ref, Released: w.now, ReleasedN: 1}
	case 11:
		return Exited{Ref: ref, Code: uint32(arg)}
	case 12, 13:
		return IdleSeen{LastPacket: recent}
	case 14:
		return Quiet{ref, w.gen - uint64(arg%3), recent, uint32(arg % 5 / 4)}
	case 15:
		return FlowsSeen{ref, uint32(arg % 2), recent}
	case 16:
		return StopDone{ref}
	case 17:
		if arg%3 == 0 && !w.spec.Rolls {
			return RestartAsked{}
		}
		return SleepAsked{}
	case 18:
		return SpecChanged{w.spec, arg%3 != 0}
	case 19:
		if arg > 250 {
			return Deleted{Drain: arg%2 == 0}
		}
		return Rejoined{}
	case 20:
		return Adopted{Ref: ref, Leaving: arg%4 == 0}
	case 21, 22:
		return Scale{N: int(arg % 7), Why: "tested"}
	case 23:
		return Appeared{ref}
	case 24:
		return Leaving{Ref: ref}
	case 25:
		return Away{ref}
	case 26:
		return Back{ref}
	case 27:
		return Unready{ref, recent, "no", arg%4 == 0}
	case 28:
		return Deaf{Ref: ref}
	case 29, 30:
		return FrozenSeen{Ref: ref, Seq: w.freeze - uint64(arg%2), Frozen: arg%3 > 0, At: w.now, LastPacket: recent}
	case 31:
		if arg%2 == 0 {
			return Pressed{"no room"}
		}
		return ThawAsked{}
	default:
		return Timer{Rolling: arg%2 == 0}
	}
}

// finish answers all that is open, by failing starts, and lets time pass. In the end no client may be waiting.
func (w *world) finish() {
	for range 200 {
		for _, r := range w.m.Pods() {
			switch {
			case w.stopped[r]:
				w.step(StopDone{r})
			case w.starting[r]:
				w.step(StartFailed{Ref: r, Err: errors.New("no")})
			}
		}
		if !w.parked {
			w.end()
			return
		}
		if w.armed == 0 {
			w.fatal("clients wait in state %s, and there is no timer", w.m.State())
		}
		w.now = max(w.now, w.armed)
		w.step(Timer{})
	}
	w.fatal("clients wait for ever in state %s", w.m.State())
}

// end deletes the service. Nothing of it may be left.
func (w *world) end() {
	w.step(Deleted{})
	for _, r := range w.m.Pods() {
		if !w.stopped[r] {
			w.fatal("deleted, and pod %d is not stopped", r)
		}
		w.step(StopDone{r})
	}
	if !w.m.Gone() || len(w.live) > 0 {
		w.fatal("deleted, and pods are left: %v", w.live)
	}
}

func run(t *testing.T, script []byte) {
	if len(script) == 0 {
		return
	}
	w := newWorld(t, script[0])
	script = script[1:]
	for ; len(script) >= 3; script = script[3:] {
		w.now = w.now.Add(time.Duration(script[2]) * time.Duration(script[2]) * time.Millisecond)
		w.step(w.chaos(script[0], script[1]))
	}
	w.finish()
}

func TestInvariantsHoldForEventsInAnyOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		script := make([]byte, 1+3*(1+rng.IntN(80)))
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		run(t, script)
	}
}

func FuzzInvariantsHoldForEventsInAnyOrder(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 4, 1, 5, 8, 1, 5, 12, 9, 200, 14, 1, 1, 16, 1, 9})
	f.Add([]byte{1, 0, 1, 0, 7, 1, 5, 0, 1, 5, 7, 1, 1, 0, 1, 1})
	f.Add([]byte{3, 20, 0, 0, 0, 1, 1, 18, 1, 1, 8, 1, 1, 19, 255, 0})
	f.Fuzz(run)
}
