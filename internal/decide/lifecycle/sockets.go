// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// sockets is where a pod that does not serve listens, as its node has seen it.
type sockets struct {
	seen bool // its node has looked
	at   []netip.AddrPort
}

// maxNamedSockets is how many sockets a message names.
const maxNamedSockets = 4

// elsewhere says where the sockets are, given that none is where clients reach the port:
// "listens on 9000; targetPort is 8080". It is empty if the node has not looked yet or has found none.
func (s sockets) elsewhere(port uint16) string {
	if len(s.at) == 0 {
		return ""
	}
	var near []netip.AddrPort // at the port, but not where clients reach it
	for _, a := range s.at {
		if a.Port() == port {
			near = append(near, a)
		}
	}
	if len(near) == 0 {
		return fmt.Sprintf("listens on %s; targetPort is %d", namesOf(s.at, true), port)
	}
	only6 := !slices.ContainsFunc(near, func(a netip.AddrPort) bool { return a.Addr().Is4() || a.Addr().IsLoopback() })
	if only6 {
		return fmt.Sprintf("listens on %s for IPv6 only, not on an address that clients reach", namesOf(near, false))
	}
	return fmt.Sprintf("listens on %s, not on an address that clients reach", namesOf(near, false))
}

// remedy is what to do about it.
func (s sockets) remedy(port uint16) string {
	if slices.ContainsFunc(s.at, func(a netip.AddrPort) bool { return a.Port() == port }) {
		return "make it listen on 0.0.0.0 or [::]"
	}
	return "correct spec.targetPort"
}

// namesOf names addresses; with ports set, those of all interfaces by their ports alone.
func namesOf(at []netip.AddrPort, ports bool) string {
	var names []string
	for _, a := range at {
		name := a.String()
		if ports && a.Addr().IsUnspecified() {
			name = strconv.Itoa(int(a.Port()))
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if more := len(names) - maxNamedSockets; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamedSockets], ", "), more)
	}
	if n := len(names); n > 1 {
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return names[0]
}

// sockets handles a report of where a pod listens that does not serve.
func (t *transition) sockets(e Sockets) {
	if p := t.pod(e.Ref); p != nil && (!p.listens() || len(t.spec.More) > 0) {
		p.sockets = sockets{true, e.At}
	}
}

// listens reports whether the pod's socket has been seen to listen where clients reach it, and still does.
func (p *pod) listens() bool {
	return p.is(podProbed) || p.progress >= podConfirmed && !p.is(podDeaf)
}

// Misplaced says where a pod listens that runs and listens, but not where clients reach it; empty if there is none.
func (m *Machine) Misplaced() string {
	for _, p := range m.pods {
		if p.life > lifeServing || p.is(podAway) || p.listens() {
			continue
		}
		if where := p.sockets.elsewhere(m.spec.Port); where != "" {
			return fmt.Sprintf("a process runs but %s: %s", where, p.sockets.remedy(m.spec.Port))
		}
	}
	return ""
}
