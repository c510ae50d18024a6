// SPDX-License-Identifier: Apache-2.0

package access

import (
	"net/http"
	"sync"

	"wangell.loutres.me/internal/show/dashboard"
)

// board is a dashboard with its handlers.
type board struct {
	services       Services
	dashboard      *dashboard.Dashboard
	reads, actions http.Handler
}

// boards keeps the dashboard of the present services.
type boards struct {
	mu  sync.Mutex
	now *board
}

// of returns the dashboard of services, which make makes. The streams of the previous one end.
func (b *boards) of(services Services, make func(Services) *dashboard.Dashboard) *board {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.now == nil || b.now.services != services {
		if b.now != nil {
			b.now.dashboard.Close()
		}
		d := make(services)
		b.now = &board{services, d, d.Handler(false), d.Handler(true)}
	}
	return b.now
}

// close ends all streams.
func (b *boards) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.now != nil {
		b.now.dashboard.Close()
		b.now = nil
	}
}
