// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
)

// Port is a port of a service beyond its first one.
type Port struct {
	Name   string // for messages
	Target uint16 // on which its pods are expected to listen
}

// PortSet is a set of the ports of a service: bit i is the i-th of them.
type PortSet uint16

// Only returns the set of one port.
func Only(port int) PortSet { return 1 << port }

// Has reports whether a port is in the set.
func (s PortSet) Has(port int) bool { return s&Only(port) != 0 }

// ports is what a machine knows about the ports of a service with several. A pod serves as soon as one of them listens,
// and clients of the others wait for theirs.
type ports struct {
	asked PortSet // ports whose clients wait for a pod
	waits [v1alpha1.MaxPorts]portWait
}

// portWait is about a port at which no pod listens while the service is Warm.
type portWait struct {
	until   monotime.Time // its clients wait until then; zero if none does
	refused bool          // they have waited long enough: further ones are refused at once, until a pod listens
}

// ports is the number of ports of a service.
func (s Spec) ports() int { return 1 + len(s.More) }

// target is the port on which pods are expected to listen for a port of the service.
func (s Spec) target(port int) uint16 {
	if port == 0 || port > len(s.More) {
		return s.Port
	}
	return s.More[port-1].Target
}

// named describes a port for messages.
func (s Spec) named(port int) string {
	if port == 0 || port > len(s.More) {
		return fmt.Sprintf("port %d", s.Port)
	}
	return fmt.Sprintf("port %d (%s)", s.More[port-1].Target, s.More[port-1].Name)
}

// opened notes that a pod listens on a port.
func (t *transition) opened(p *pod, port int) {
	p.open |= Only(port)
	t.ports.waits[port] = portWait{}
}

// waitsForPort reports whether the clients that a pod was started for wait for another port than those on which it
// listens.
func (t *transition) waitsForPort(p *pod) bool {
	return t.state == Waking && p.life == lifeStarting && t.ports.asked != 0 && t.ports.asked&p.open == 0
}

// serveOpen makes pods serve that listen on a port at which clients wait by now.
func (t *transition) serveOpen() {
	for _, p := range t.pods {
		if p.life == lifeStarting && p.open != 0 && !p.is(podProbed) && !t.waitsForPort(p) {
			t.serve(p, t.now)
		}
	}
}

// isOpen reports whether a serving pod listens on a port.
func (m *Machine) isOpen(port int) bool {
	return m.count(func(p *pod) bool { return p.serves() && p.progress == podConfirmed && p.open.Has(port) }) > 0
}

// awaitPort gives a serving pod time to listen on a port at which a client waits.
func (t *transition) awaitPort(port int) {
	if port >= t.spec.ports() || t.isOpen(port) {
		return
	}
	w := &t.ports.waits[port]
	switch latest := t.lastServed().Add(t.spec.WakeTimeout); {
	case w.refused:
		t.refusePort(port)
	case w.until != 0:
	case latest <= t.now:
		t.giveUpPort(port)
	default:
		w.until = latest
	}
}

// lastServed is when the youngest serving pod began to serve.
func (t *transition) lastServed() monotime.Time {
	var last monotime.Time
	for _, p := range t.pods {
		if p.serves() {
			last = max(last, p.served)
		}
	}
	return last
}

// awaitPorts makes the clients of a wake whose ports are not open yet wait until its deadline.
func (t *transition) awaitPorts(deadline monotime.Time) {
	for port := range t.spec.ports() {
		if w := &t.ports.waits[port]; t.ports.asked.Has(port) && !t.isOpen(port) {
			w.until, w.refused = max(deadline, t.now), false
		}
	}
	t.ports.asked = 0
}

// portsDue refuses the clients of ports that did not open in time.
func (t *transition) portsDue() {
	for port := range t.spec.ports() {
		if until := t.ports.waits[port].until; until != 0 && t.now >= until {
			t.giveUpPort(port)
		}
	}
}

// giveUpPort refuses the clients of a port, also later ones, until a pod listens there.
func (t *transition) giveUpPort(port int) {
	t.ports.waits[port] = portWait{refused: true}
	t.refusePort(port)
	t.report(v1alpha1.EventProblem, Warning, "%s", t.closedReason(port))
}

func (t *transition) refusePort(port int) {
	t.refusePorts |= Only(port)
	t.refusePortsWhy = t.closedReason(port)
}

// closedReason says why the clients of a port are refused while others are served.
func (m *Machine) closedReason(port int) string {
	for _, p := range m.pods {
		if !p.serves() || !p.sockets.seen {
			continue
		}
		if where := p.sockets.elsewhere(m.spec.target(port)); where != "" {
			return fmt.Sprintf("clients of %s are refused: a process %s", m.spec.named(port), where)
		}
	}
	return fmt.Sprintf("clients of %s are refused: nothing listens there", m.spec.named(port))
}

// ClosedPorts says which ports of a service refuse their clients while others serve; empty if there are none.
func (m *Machine) ClosedPorts() string {
	for port := range m.spec.ports() {
		if m.state == Warm && m.ports.waits[port].refused && !m.isOpen(port) {
			return m.closedReason(port)
		}
	}
	return ""
}

// nextPort is the earliest time at which portsDue has something to do; zero for none.
func (m *Machine) nextPort() (next monotime.Time) {
	for port := range m.spec.ports() {
		if at := m.ports.waits[port].until; at != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	return next
}
