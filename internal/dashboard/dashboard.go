// SPDX-License-Identifier: Apache-2.0

// Package dashboard is the dashboard for browsers: a page, and the stream of server-sent events that it draws. It
// samples the controller once a second while somebody watches, in bounded memory, and asks no API server.
//
// Handler knows no transport, and lets everybody in who reaches it, unless Config.Of refuses. Guard protects it on a
// loopback address.
//
//	GET  /                            the page; also app.js, app.css and icon.svg
//	GET  /api/about                   About
//	GET  /api/stream?service=NS/NAME  the events "all" (All) once, then "tick" (Tick) every second, each with "pods"
//	                                  (Detail) if a service is watched
//	GET  /api/gates                   []Gate: counters and tables of the nodes' gates
//	GET  /api/connections             Connections: who is connected to what
//	POST /api/sleep?service=NS/NAME   204 once it sleeps; only with actions, and with the header Wangell-Action
package dashboard

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/localapi"
	"wangell.loutres.me/internal/runtime"
)

// Source is what is shown. A controller.Controller is one.
type Source interface {
	Status() []controller.Status
	Pressure() []controller.Pressure
	Wakes(key runtime.Key) []lifecycle.Waterfall
	Subscribe(ctx context.Context) <-chan controller.Event
	Resolve(name string) (runtime.Key, error)
	Sleep(ctx context.Context, key runtime.Key) error
}

// Config configures a Dashboard.
type Config struct {
	Source Source
	// Of returns what the sender of a request may see and do; nil if that is everything. Its error refuses the request,
	// with the code of a localapi.Error. It is asked again while a stream lasts.
	Of func(*http.Request) (Scope, error)
	// Version is the version of the program.
	Version string
	// Gates returns the state of the gates of nodes; nil if it is not known here.
	Gates func(ctx context.Context) ([]Gate, error)
	// Connections returns who is connected to what; nil if it is not known here.
	Connections func(ctx context.Context) (Connections, error)
}

// Connections is who is connected to what.
type Connections struct {
	// Most are the pairs of a client and a service with the most connections, most first.
	Most []ConnectionsOf `json:"most"`
	// Others is the number of connections of all other pairs.
	Others uint32 `json:"others"`
}

// ConnectionsOf is the number of open connections of a client to a service.
type ConnectionsOf struct {
	Client  netip.Addr `json:"client"`
	Service string     `json:"service"` // namespace/name
	Open    uint32     `json:"open"`
}

// Gate is the state of the gate of a node.
type Gate struct {
	Node string `json:"node"`
	// Tables are how full its tables are.
	Tables []Table `json:"tables"`
	// Counters count special packets, by kind.
	Counters map[string]uint64 `json:"counters"`
	// Interfaces are its external interfaces with their XDP mode.
	Interfaces map[string]string `json:"interfaces,omitempty"`
	// Parked is the number of connection requests that wait for a pod now.
	Parked uint64 `json:"parked"`
}

// Table is how full a table of a gate is, or the largest share of one.
type Table struct {
	Name string `json:"name"`
	Used uint64 `json:"used"`
	Size uint64 `json:"size"`
}

// About says what a browser may expect.
type About struct {
	Version string `json:"version"`
	// Actions is set if services may be put to sleep.
	Actions bool `json:"actions"`
	// Gates is set if the state of gates is known, and may be seen; Connections if it is known who is connected to what.
	Gates       bool `json:"gates"`
	Connections bool `json:"connections"`
}

// Dashboard serves the dashboard.
type Dashboard struct {
	cfg        Config
	hub        *hub
	renewEvery time.Duration // how often the scope of a stream is asked for again
}

// New returns a dashboard. It does nothing until a browser asks.
func New(cfg Config) *Dashboard {
	if cfg.Of == nil {
		cfg.Of = func(*http.Request) (Scope, error) { return whole{cfg.Source}, nil }
	}
	return &Dashboard{cfg: cfg, hub: newHub(cfg.Source), renewEvery: renewEvery}
}

// Close ends all streams.
func (d *Dashboard) Close() { d.hub.close() }

// Handler serves the page and its data below any path, if http.StripPrefix removes that. A request for the path without
// its final slash must be redirected to that with it. Without actions it only reads. Streams end with Close.
func (d *Dashboard) Handler(actions bool) http.Handler {
	mux := http.NewServeMux()
	for _, a := range assets() {
		mux.Handle("GET "+a.path, a)
	}
	with := func(pattern string, f func(http.ResponseWriter, *http.Request, Scope)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			scope, err := d.cfg.Of(r)
			if err != nil {
				localapi.Refuse(w, err)
				return
			}
			f(w, r, scope)
		})
	}
	with("GET /api/about", func(w http.ResponseWriter, _ *http.Request, s Scope) {
		all := s.Everything()
		answer(w, About{d.cfg.Version, actions, all && d.cfg.Gates != nil, all && d.cfg.Connections != nil}, nil)
	})
	with("GET /api/stream", d.stream)
	with("GET /api/gates", d.gates)
	with("GET /api/connections", d.connections)
	if actions {
		with("POST /api/sleep", d.sleep)
	}
	return secured(mux)
}
