// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// headerTimeout limits how long a client may take to send the header of its request.
const headerTimeout = 5 * time.Second

// serveHTTP serves metrics and health on the configured addresses until stop is called.
func (c *Config) serveHTTP(handler http.Handler) (stop func(), err error) {
	var listeners []net.Listener
	if c.MetricsSocket != "" {
		if err := os.Remove(c.MetricsSocket); err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("removing the old metrics socket: %w", err)
		}
		l, err := net.Listen("unix", c.MetricsSocket)
		if err != nil {
			return nil, fmt.Errorf("serving metrics: %w", err)
		}
		listeners = append(listeners, l)
	}
	if c.MetricsAddress != "" {
		l, err := net.Listen("tcp", c.MetricsAddress)
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return nil, fmt.Errorf("serving metrics and health: %w", err)
		}
		listeners = append(listeners, l)
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout}
	for _, l := range listeners {
		go func() {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				c.Log.Error("cannot serve metrics and health", "address", l.Addr(), "error", err)
			}
		}()
	}
	return func() { _ = srv.Close() }, nil
}

// Connections is who is connected to what, as the daemon's socket answers to /connections.
type Connections struct {
	// Most are the pairs with the most connections.
	Most []ConnectionsOf `json:"most"`
	// Others is the number of connections of all other pairs.
	Others uint32 `json:"others"`
}

// ConnectionsOf is the number of established connections of a client to a service.
type ConnectionsOf struct {
	Client  netip.Addr `json:"client"`
	Service string     `json:"service"` // namespace/name
	Open    uint32     `json:"open"`
}

// mostConnections is the number of pairs that are told apart.
const mostConnections = 500

// connections answers who is connected to what, on the unix socket only: on a network, that is nobody's business.
func (d *daemon) connections(w http.ResponseWriter, r *http.Request) {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); !ok || a.Network() != "unix" {
		http.NotFound(w, r)
		return
	}
	most, others, err := d.gate.Connections(mostConnections)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	names := map[netip.AddrPort]string{}
	for _, s := range d.allServices() {
		names[s.addr] = s.name
	}
	out := Connections{Most: []ConnectionsOf{}, Others: others}
	for _, c := range most {
		out.Most = append(out.Most, ConnectionsOf{c.Client, cmp.Or(names[c.Service], c.Service.String()), c.Open})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // it fails only if the client is gone
}

// handler returns the handler of /metrics, /connections, /healthz and /readyz.
func (d *daemon) handler() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(newCollector(d))
	if d.images != nil {
		reg.MustRegister(d.images.keeper)
		if d.images.mirror != nil {
			reg.MustRegister(d.images.mirror)
		}
	}
	// The namespace keeps the daemon's process metrics apart from the controller's.
	reg.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{Namespace: "wangell_daemon"}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("/connections", d.connections)
	mux.HandleFunc("/healthz", healthy)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-d.tabled:
			fmt.Fprintln(w, "ok")
		default:
			http.Error(w, "no table of services received from the controller yet", http.StatusServiceUnavailable)
		}
	})
	return mux
}

func healthy(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }
