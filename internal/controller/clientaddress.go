// SPDX-License-Identifier: Apache-2.0

package controller

import "wangell.loutres.me/api/v1alpha1"

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
			e.events.report(s.key, SeverityWarning, now)
		}
		e.changed.check(s)
	}
}
