// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"slices"
	"strings"

	"wangell.loutres.me/internal/runtime"
)

// Scope is what one browser may see and do.
type Scope interface {
	// Everything reports whether it may see all namespaces, and the state of nodes.
	Everything() bool
	// Sees reports whether it may see the services of a namespace. known is false if that is not decided yet; then
	// nothing of it is shown.
	Sees(namespace string) (yes, known bool)
	// Resolve returns the service with a name, if the browser may see it.
	Resolve(name string) (runtime.Key, error)
	// Sleep puts a service to sleep, if it may do that.
	Sleep(ctx context.Context, key runtime.Key) error
}

// whole is the Scope of users who may see and do everything.
type whole struct{ Source }

// Everything implements Scope.
func (whole) Everything() bool { return true }

// Sees implements Scope.
func (whole) Sees(string) (yes, known bool) { return true, true }

// sees reports whether data of a service (namespace/name) may be shown. Data without a service belongs to a node.
func sees(s Scope, service string) bool {
	namespace, _, ok := strings.Cut(service, "/")
	if !ok {
		return s.Everything()
	}
	yes, _ := s.Sees(namespace)
	return yes
}

// share names the part of the board that a scope sees; scopes that see the same have the same share. unknown is set
// if the board has a namespace on which the scope has not decided yet.
func (b *board) share(s Scope) (name string, unknown bool) {
	if s.Everything() {
		return "*", false
	}
	var visible []string
	for n := range b.namespaces {
		yes, known := s.Sees(n)
		if yes {
			visible = append(visible, n)
		}
		unknown = unknown || !known
	}
	slices.Sort(visible)
	return strings.Join(visible, " "), unknown
}

// of returns the part of a tick that a scope sees.
func (t Tick) of(s Scope) Tick {
	if s.Everything() {
		return t
	}
	yes := func(namespace string) bool {
		yes, _ := s.Sees(namespace)
		return yes
	}
	out := Tick{Time: t.Time}
	for _, r := range t.Services {
		if yes(r.Namespace) {
			out.Services = append(out.Services, r)
		}
	}
	for i, id := range t.Gone {
		if yes(t.goneFrom[i]) {
			out.Gone = append(out.Gone, id)
		}
	}
	for i, l := range t.Loads {
		if yes(t.loadsFrom[i]) {
			out.Loads = append(out.Loads, l)
		}
	}
	for _, w := range t.Wakes {
		if sees(s, w.Service) {
			out.Wakes = append(out.Wakes, w)
		}
	}
	for _, e := range t.Events {
		if sees(s, e.Service) {
			out.Events = append(out.Events, e)
		}
	}
	return out
}
