// SPDX-License-Identifier: Apache-2.0

package node

import "wangell.loutres.me/internal/gate"

// traceEvent records a pod's first SYN-ACK or first byte and reports it.
func (d *daemon) traceEvent(e gate.Event) {
	s := d.service(e.Service)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[e.Pod]
	if p == nil || !p.home {
		return // the home node observes the flows of all edge nodes
	}
	if e.Kind == gate.EventFirstSYNACK {
		p.trace.FirstSYNACK = e.At
	} else {
		p.trace.FirstByte = e.At
	}
	d.sendTrace(s, p)
}

// sendTrace reports the times of a pod's wake that are known so far. s.mu is held.
func (d *daemon) sendTrace(s *service, p *pod) {
	t := p.trace
	t.Service, t.PodID = s.addr, p.id
	d.send(&t)
}
