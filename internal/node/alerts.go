// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

const (
	// alertHold is how long a condition must be over before its alert ends. A condition that flaps is thus a single
	// alert, and an attacker that makes it flap causes few messages.
	alertHold = time.Minute
	// maxWakeAlerts bounds the alerts about wake budgets at a time. A flood may hit more services than that.
	maxWakeAlerts = 64
)

// alerts tracks which resources of this node are scarce. Time is a parameter.
type alerts struct {
	mu     sync.Mutex
	active map[alertKey]*alert
}

// alertKey identifies an alert: one per service for each wake budget, and one for each table.
type alertKey struct {
	kind    wire.AlertKind
	service netip.AddrPort // zero for a table
}

type alert struct {
	last wire.Alert // as it was last sent
	sent time.Time
	seen time.Time // when the resource was last scarce
}

func keyOf(m *wire.Alert) alertKey {
	if m.Kind.OfWakes() {
		return alertKey{m.Kind, m.Service}
	}
	return alertKey{kind: m.Kind}
}

// see records a scarce resource, and sends the alert if it is new, or if it is about a wake budget and was last sent at
// least alertHold ago. It reports whether this is a new alert. Messages are sent with mu held, so the newest is sent
// last.
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

// ofWakes returns the number of alerts about wake budgets. a.mu is held.
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

// Fill levels at which a table counts as almost full, and below which it has room again.
const (
	fillWarns = 0.8
	fillCalms = 0.7
)

// tableAlerts maps the gate's tables to their kinds of alert.
var tableAlerts = map[string]wire.AlertKind{
	"services": wire.AlertServices, "pods": wire.AlertPods, "parked": wire.AlertParked, "flows": wire.AlertFlows,
	"flows_per_source": wire.AlertSourceFlows, "flows_per_service": wire.AlertServiceFlows,
	"source_rules": wire.AlertSourceRules,
}

// fills returns how full the gate's tables are. The flow table is left out until its first sweep.
func (d *daemon) fills() []gate.Fill {
	fills := d.gate.Fills()
	if flows := d.flows.Load(); flows != nil {
		fills = append(fills, *flows...)
	}
	return fills
}

// seeFills records which tables are almost full, and returns the new ones.
func (a *alerts) seeFills(fills []gate.Fill, now time.Time, send func(wire.Message)) (begun []gate.Fill) {
	for _, f := range fills {
		switch part := float64(f.Used) / float64(f.Size); {
		case part >= fillWarns:
			m := wire.Alert{Kind: tableAlerts[f.Table], Service: f.Service, Source: f.Source, Used: f.Used, Size: f.Size}
			if a.see(m, now, send) {
				begun = append(begun, f)
			}
		case part >= fillCalms:
			a.stays(tableAlerts[f.Table], now)
		}
	}
	return begun
}

// checkScarce reports tables of the gate that have become almost full, and alerts that have ended. It reports whether
// it must be called again although there is neither a pod nor a flow.
func (d *daemon) checkScarce(now time.Time) (again bool) {
	fills := d.fills()
	for _, f := range d.alerts.seeFills(fills, now, d.send) {
		d.log.Warn("a table of the gate is almost full: beyond its size new entries are refused", "table", f.Table,
			"of", f.Of(), "entries", f.Used, "size", f.Size, "raise", f.Flag)
	}
	for _, m := range d.alerts.expire(now, d.send) {
		d.log.Info("no longer scarce", "what", m.Kind.String(), "address", m.Service.String())
	}
	parked := slices.ContainsFunc(fills, func(f gate.Fill) bool { return f.Table == "parked" && f.Used > 0 })
	return parked || len(d.alerts.counts()) > 0
}
