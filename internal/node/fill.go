// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"time"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// Parts of a table's size from which it counts as almost full, and below which it has room again.
const (
	fillWarns = 0.8
	fillCalms = 0.7
)

// tableAlerts are the kinds of the alerts of the gate's tables.
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
