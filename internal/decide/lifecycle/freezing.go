// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
)

const (
	// BusyCores is the CPU usage, in cores, above which a pod without packets is at work and not frozen.
	BusyCores = 0.05
	// useOn is how long after the first thaw of a service's pods a packet means that the service is in use, so that the
	// other pods are thawed as well. A single request is over by then.
	useOn = time.Second
)

// freezes reports whether the pods of an idle service are frozen.
func (m *Machine) freezes() bool { return m.spec.FreezeAfter > 0 && !m.deleted && m.state == Warm }

// NotFrozen explains why the pods of an idle service run although they could be frozen; empty if they are, or the
// service is in use.
func (m *Machine) NotFrozen() string { return m.freeze.why }

// freezePods freezes the pods of an idle service, unless one of them is at work.
func (t *transition) freezePods(e IdleSeen) {
	f := &t.freeze
	for _, p := range t.pods {
		if cores := e.Cores[p.ref]; p.serves() && cores > BusyCores && !t.spec.FreezeWhenBusy {
			t.keepRunning(Info, "a pod works although nobody uses it: %.0f %% of a core since its last packet", 100*cores)
			return
		}
	}
	if t.count(func(p *pod) bool { return p.starting() || p.serves() && p.progress < podConfirmed }) > 0 {
		return // the daemons repeat the report
	}
	f.idle, f.on, f.used, f.stopAt = e, true, 0, t.stopTime(e.LastPacket)
	t.sendFreeze()
}

// stopTime is when an idle service is stopped; zero for never.
func (t *transition) stopTime(last monotime.Time) monotime.Time {
	if t.spec.Min > 0 || t.spec.IdleTimeout == 0 {
		return 0
	}
	return last.Add(t.spec.IdleTimeout)
}

// sendFreeze makes a new decision known.
func (t *transition) sendFreeze() {
	f := &t.freeze
	f.seq++
	t.freezeNow = &FreezePods{Seq: f.seq}
	if !f.on {
		return
	}
	for _, p := range t.pods {
		if p.serves() {
			last, known := f.idle.Of[p.ref]
			if !known {
				last = f.idle.LastPacket
			}
			t.freezeNow.Pods = append(t.freezeNow.Pods, FrozenPod{p.ref, last})
		}
	}
}

// thaw thaws all pods that are frozen or about to be.
func (t *transition) thaw() {
	if f := &t.freeze; f.on {
		f.on, f.stopAt, f.used = false, 0, 0
		t.sendFreeze()
	}
}

// frozenSeen handles a report that a pod was frozen or thawed.
func (t *transition) frozenSeen(e FrozenSeen) {
	p, f := t.pod(e.Ref), &t.freeze
	if p == nil || p.life == lifeExited || e.Seq != 0 && e.Seq < f.seq && e.Frozen {
		return // it is about to be thawed, or will be reported anew
	}
	was := t.allFrozen()
	p.change(podFrozen, e.Frozen)
	switch {
	case e.Frozen && !f.on && t.freezes() && p.serves() && (e.Seq != 0 || f.seq == 0):
		// The daemon found it frozen by an earlier controller. If this one had it frozen, and then thawed, an earlier daemon
		// has not received that.
		f.idle, f.on, f.used, f.stopAt = IdleSeen{LastPacket: e.LastPacket}, true, 0, t.stopTime(e.LastPacket)
		if !t.allFrozen() {
			f.used = t.now
		}
	case e.Frozen && !f.on && !p.drains():
		t.sendFreeze() // nothing is to be frozen
	case e.Frozen:
		f.why = ""
	case f.on && e.Reason != "":
		t.keepRunning(Warning, "a pod cannot be frozen: %s", e.Reason)
	case f.on && f.used == 0:
		f.used = e.At
	}
	switch all := t.allFrozen(); {
	case t.state != Warm || all == was || all && !f.on:
	case all:
		t.note("frozen: not used for %s", roundUp(t.now.Sub(f.idle.LastPacket)))
	default:
		t.note("thawed")
	}
	if t.count(func(p *pod) bool { return p.is(podFrozen) }) == 0 {
		f.on, f.stopAt, f.used = false, 0, 0
	}
}

// keepRunning records why pods that could be frozen run, and reports it once.
func (t *transition) keepRunning(s Severity, format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	if t.freeze.why == "" || s == Warning && why != t.freeze.why {
		if s == Warning {
			t.report(v1alpha1.EventProblem, s, "not frozen: %s", why)
		} else {
			t.note("not frozen: %s", why)
		}
	}
	t.freeze.why = why
}

// useSeen thaws the other pods of a service when a thawed one stays in use: then new connections go to all of them.
func (t *transition) useSeen(p *pod, last monotime.Time) {
	f := &t.freeze
	if last > f.idle.LastPacket.Add(useOn) {
		f.why = ""
	}
	if f.on && f.used != 0 && !p.is(podFrozen) && last > f.used.Add(useOn) {
		t.thaw()
	}
}

// refreeze applies a changed manifest to frozen pods.
func (t *transition) refreeze() {
	if t.spec.FreezeAfter == 0 {
		t.freeze.why = ""
		t.thaw()
	} else if t.freeze.on {
		t.freeze.stopAt = t.stopTime(t.freeze.idle.LastPacket)
	}
}
