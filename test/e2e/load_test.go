// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"wangell.loutres.me/test/testutil/e2e"
)

// eventually is e2e.Eventually for a condition that shows nothing else.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	e2e.Eventually(t, what, func() (bool, string) { return holds(), "nothing" })
}

// The ways in which clients of a load connect: a new connection for each request, or a kept one.
const (
	newConnections  = false
	keptConnections = true
)

// load has every client of the lab send requests, twice in each of the ways, until it is stopped. No request may fail.
func (l *lab) load(t *testing.T, address string, ways ...bool) *e2e.Load {
	t.Helper()
	var clients []e2e.Client
	for _, from := range l.Clients {
		for _, keep := range append(ways, ways...) {
			clients = append(clients, e2e.Client{From: from, Keep: keep})
		}
	}
	return e2e.StartLoad(t, address, clients...)
}
