// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/quota"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// noteAlert handles a daemon's report of a scarce resource in its gate.
func (e *engine) noteAlert(from wire.Peer, m *wire.Alert) {
	k := pressureKey{session: from.ID, kind: m.Kind, service: m.Service}
	s := e.table.byAddr[m.Service]
	neverProves := s != nil && s.spec.Spec.WakeProof == v1alpha1.WakeProofNever
	v := status.Pressure{Reason: v1alpha1.EventTableAlmostFull, Message: alertText(from.Node, m, neverProves)}
	if m.Kind.OfWakes() {
		v.Reason = v1alpha1.EventWakesLimited
	}
	_, known := e.pressures.get(k)
	switch {
	case m.Over && !known:
		return
	case m.Over:
		e.events.report("", "", status.SeverityInfo, fmt.Sprintf("node %s: no longer scarce: %v", from.Node, m.Kind))
		e.pressures.remove(k)
	case !known && e.pressures.count[from.ID] >= maxPressures || !e.alerts.take(from.ID, time.Now()):
		return
	default:
		e.pressures.set(k, v)
		if s != nil {
			e.events.pressure(s.key, from.Node, v)
		}
		if !m.Kind.OfWakes() || m.Kind == wire.AlertNodeWakes {
			e.events.pressure("", from.Node, v)
		}
	}
	e.checkPressed(k)
}

// dropAlerts forgets the alerts of a daemon that has disconnected: the next one measures anew.
func (e *engine) dropAlerts(from wire.Peer) {
	delete(e.alerts, from.ID)
	for _, k := range e.pressures.ofSession(from.ID) {
		e.pressures.remove(k)
		e.checkPressed(k)
	}
}

// checkPressed marks services as possibly changed after the pressure on them or on a node has.
func (e *engine) checkPressed(k pressureKey) {
	if k.service.IsValid() {
		if s := e.table.byAddr[k.service]; s != nil {
			e.changed.check(s)
		}
		return
	}
	for _, s := range e.table.services {
		if s.machine.State() != lifecycle.Cold || s.reported.pressure != (status.Pressure{}) {
			e.changed.check(s)
		}
	}
}

// alertText describes an alert. unproven is set for a service whose clients need not prove where they are.
func alertText(node string, m *wire.Alert, unproven bool) string {
	consequence := "they have to prove where they are"
	if unproven {
		consequence = "their connection requests are dropped"
	}
	text := ""
	switch m.Kind {
	case wire.AlertNodeWakes:
		text = fmt.Sprintf("clients exceed the budget of wakes of the node, one of them in %v: %s", m.Source, consequence)
	case wire.AlertServiceWakes:
		text = fmt.Sprintf("clients exceed the budget of wakes of the service, one of them in %v: %s", m.Source, consequence)
	case wire.AlertSourceWakes:
		text = fmt.Sprintf("clients in %v exceed their budget of wakes: %s", m.Source, consequence)
	case wire.AlertProvenWakes:
		text = fmt.Sprintf("clients in %v exceed the budget of wakes of those that have proven where they are: "+
			"their connection requests to sleeping services are dropped", m.Source)
	case wire.AlertSourceFlows:
		text = fmt.Sprintf("client %v has %d of the %d connections that one address may have (--max-flows-per-source)",
			m.Source.Addr(), m.Used, m.Size)
	case wire.AlertServiceFlows:
		text = fmt.Sprintf("service address %v has %d of the %d connections that one may have (--max-flows-per-service)",
			m.Service, m.Used, m.Size)
	default:
		text = fmt.Sprintf("the gate's table %v is almost full: %d of %d entries (--%[1]v)", m.Kind, m.Used, m.Size)
	}
	return "node " + node + ": " + text
}

// alertRate limits the alerts of a daemon: each may change the status of every service in use. A daemon sends each of
// its alerts once a minute at most, and not more of them than maxPressures.
var alertRate = quota.Rate{Burst: maxPressures, Pause: time.Second / 4}

// deniedRate limits the events about denied clients of a service, of which clients and daemons could cause any number.
var deniedRate = quota.Rate{Burst: 1, Pause: 10 * time.Second}

// alertBuckets are what sessions have spent of alertRate.
type alertBuckets map[uint64]*quota.Bucket

func (a alertBuckets) take(session uint64, now time.Time) bool {
	if a[session] == nil {
		a[session] = &quota.Bucket{}
	}
	return a[session].Take(alertRate, now)
}

// noteDenied handles a node's report. Its gate counts from zero after the service was added there anew.
func (e *engine) noteDenied(s *service, node string, m *wire.Denied) {
	s.denied.note(node, m.Total, m.Source)
	if s.denied.events.Take(deniedRate, time.Now()) {
		text := fmt.Sprintf("denied %s: its address may not connect to the service", m.Source)
		e.events.report(s.key, v1alpha1.EventDenied, status.SeverityWarning, text)
	}
	e.changed.check(s)
}

// denials are the connection requests to a service that gates have dropped because of their source.
type denials struct {
	byNode map[string]uint64
	source netip.Addr // of the last one that was reported
	events quota.Bucket
}

func (d *denials) total() (n uint64) {
	for _, of := range d.byNode {
		n += of
	}
	return n
}

// note records the number of requests that a node's gate has dropped, and the source of the last one.
func (d *denials) note(node string, total uint64, source netip.Addr) {
	if d.byNode == nil {
		d.byNode = map[string]uint64{}
	}
	d.byNode[node], d.source = total, source
}

// message says what was denied; empty if nothing was.
func (d *denials) message() string {
	if !d.source.IsValid() {
		return ""
	}
	return fmt.Sprintf("%d connection requests denied, one of them from %s, which may not connect", d.total(), d.source)
}

// ReportHiddenClients sets why pods of services with clientAddress: Transparent do not see the addresses of their
// clients; empty if they do. It applies to the services that exist at the time of the call.
func (c *Controller) ReportHiddenClients(why string) {
	c.loop.post(func() { c.engine.noteHiddenClients(why) })
}

func (e *engine) noteHiddenClients(why string) {
	text := ""
	if why != "" {
		text = "spec.balancing.clientAddress: Transparent is not possible here: " + why +
			": pods see Envoy's address, and that of the client in X-Forwarded-For"
	}
	for _, s := range e.table.services {
		b := s.spec.Spec.Balancing
		wanted := b != nil && b.ClientAddress == v1alpha1.ClientAddressTransparent
		now := text
		if !wanted {
			now = ""
		}
		if s.hiddenClients == now {
			continue
		}
		if s.hiddenClients = now; now != "" {
			e.events.report(s.key, v1alpha1.EventProblem, status.SeverityWarning, now)
		}
		e.changed.check(s)
	}
}
