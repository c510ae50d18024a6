// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/wire"
)

const (
	// alertHold is how long a condition must be over before its alert ends. A condition that flaps is thus a single
	// alert, and an attacker that makes it flap causes few messages.
	alertHold = time.Minute
	// maxWakeAlerts is the most alerts of budgets of wakes at a time. A flood may meet more services.
	maxWakeAlerts = 64
)

// alerts are the scarce resources of this node. Time is a parameter.
type alerts struct {
	mu     sync.Mutex
	active map[alertKey]*alert
}

// alertKey identifies an alert: each budget of wakes has one per service, each table one.
type alertKey struct {
	kind    wire.AlertKind
	service netip.AddrPort // zero for a table
}

type alert struct {
	last wire.Alert // as it was last sent
	sent time.Time
	seen time.Time // when it was scarce last
}

func keyOf(m *wire.Alert) alertKey {
	if m.Kind.OfWakes() {
		return alertKey{m.Kind, m.Service}
	}
	return alertKey{kind: m.Kind}
}

// see records a scarce resource, and sends the alert if it is new, or if it is about a budget of wakes and was last
// sent an alertHold ago. It reports whether this is a new alert. Messages are sent with mu held, so the newest is
// sent last.
func (a *alerts) see(m wire.Alert, now time.Time, send func(wire.Message)) (begins bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := keyOf(&m)
	known := a.active[k]
	switch {
	case known != nil:
		known.seen = now
		if !m.Kind.OfWakes() || now.Sub(known.sent) < alertHold {
			return false
		}
		known.last, known.sent = m, now
	case m.Kind.OfWakes() && a.ofWakes() >= maxWakeAlerts:
		return false
	default:
		a.active[k] = &alert{last: m, sent: now, seen: now}
	}
	send(&m)
	return known == nil
}

// stays records that a resource is still scarce, if there is an alert for it.
func (a *alerts) stays(kind wire.AlertKind, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.active[alertKey{kind: kind}]; known != nil {
		known.seen = now
	}
}

// expire ends alerts whose cause has been absent for alertHold, and sends and returns their ends.
func (a *alerts) expire(now time.Time, send func(wire.Message)) (over []wire.Alert) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.keys() {
		if known := a.active[k]; now.Sub(known.seen) >= alertHold {
			over = append(over, a.end(k, send))
		}
	}
	return over
}

// forget ends the alerts of a service that is removed.
func (a *alerts) forget(service netip.AddrPort, send func(wire.Message)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.keys() {
		if k.service == service {
			a.end(k, send)
		}
	}
}

// sendAll sends all alerts, in a fixed order.
func (a *alerts) sendAll(send func(wire.Message)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.keys() {
		m := a.active[k].last
		send(&m)
	}
}

// counts returns the number of alerts of each kind.
func (a *alerts) counts() map[wire.AlertKind]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := map[wire.AlertKind]int{}
	for k := range a.active {
		n[k.kind]++
	}
	return n
}

// end removes an alert, and sends and returns its end. a.mu is held.
func (a *alerts) end(k alertKey, send func(wire.Message)) wire.Alert {
	m := a.active[k].last
	delete(a.active, k)
	m.Over = true
	send(&m)
	return m
}

// ofWakes returns the number of alerts of budgets of wakes. a.mu is held.
func (a *alerts) ofWakes() (n int) {
	for k := range a.active {
		if k.kind.OfWakes() {
			n++
		}
	}
	return n
}

// keys returns the keys of all alerts, in a fixed order. a.mu is held.
func (a *alerts) keys() []alertKey {
	return slices.SortedFunc(maps.Keys(a.active), func(x, y alertKey) int {
		return cmp.Or(cmp.Compare(x.kind, y.kind), x.service.Compare(y.service))
	})
}
