// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"

	"wangell.loutres.me/internal/wire"
)

// denials are the connection requests to a service that gates have dropped because of their source.
type denials struct {
	byNode map[string]uint64
	source netip.Addr // of the last one that was reported
}

func (d *denials) total() (n uint64) {
	for _, of := range d.byNode {
		n += of
	}
	return n
}

// message says what was denied; empty if nothing was.
func (d *denials) message() string {
	if !d.source.IsValid() {
		return ""
	}
	return fmt.Sprintf("%d connection requests denied, one of them from %s, which may not connect", d.total(), d.source)
}

// noteDenied takes a node's report. Its gate counts from zero after the service was added there anew.
func (e *engine) noteDenied(s *service, node string, m *wire.Denied) {
	if s.denied.byNode == nil {
		s.denied.byNode = map[string]uint64{}
	}
	s.denied.byNode[node], s.denied.source = m.Total, m.Source
	text := fmt.Sprintf("denied %s: its address may not connect to the service", m.Source)
	e.events.report(s.key, SeverityWarning, text)
	e.changed.check(s)
}
