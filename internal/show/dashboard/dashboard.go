// SPDX-License-Identifier: Apache-2.0

// Package dashboard is the dashboard for browsers: a page, and the stream of server-sent events that it draws. While
// somebody watches, it samples the controller once a second, in bounded memory and without requests to an API server.
//
// Handler does not depend on a transport, and admits everyone unless Config.Of refuses. Guard protects it on a
// loopback address.
//
//	GET  /                            the page; also app.js, app.css and icon.svg
//	GET  /api/about                   About
//	GET  /api/stream?service=NS/NAME  the events "all" (All) once, then "tick" (Tick) every second, each with "pods"
//	                                  (Detail) if a service is watched
//	GET  /api/gates?detail=NODE       []controller.Gate: tables of the nodes' gates, counters of one
//	GET  /api/connections             controller.Connections: who is connected to what
//	POST /api/sleep?service=NS/NAME   204 once it sleeps; only with actions, and with the header Wangell-Action
package dashboard

import (
	"net/http"
	"time"
)

// Config configures a Dashboard.
type Config struct {
	Source Source
	// Of returns what the sender of a request may see and do; nil means everything. An error refuses the request,
	// with the code of a httpapi.Error. It is called again while a stream lasts.
	Of func(*http.Request) (Scope, error)
	// Version is the version of the program.
	Version string
}

// About says what a browser may expect.
type About struct {
	Version string `json:"version"`
	// Actions is set if services may be put to sleep.
	Actions bool `json:"actions"`
	// Nodes is set if the state of gates and the connected clients may be seen.
	Nodes bool `json:"nodes"`
}

// Dashboard serves the dashboard.
type Dashboard struct {
	cfg        Config
	hub        *hub
	renewEvery time.Duration // the interval at which the scope of a stream is renewed
}

// StreamPath is where a browser gets the stream. Each reader of it is one of the browsers that may watch at a time.
const StreamPath = "/api/stream"

// renewEvery is the interval at which the scope of a stream is renewed.
const renewEvery = time.Minute

// New returns a dashboard. It does nothing until a browser asks.
func New(cfg Config) *Dashboard {
	if cfg.Of == nil {
		cfg.Of = func(*http.Request) (Scope, error) { return whole{cfg.Source}, nil }
	}
	return &Dashboard{cfg: cfg, hub: newHub(cfg.Source), renewEvery: renewEvery}
}

// Close ends all streams.
func (d *Dashboard) Close() { d.hub.close() }
