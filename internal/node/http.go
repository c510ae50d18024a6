// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"wangell.loutres.me/internal/base/ownhost"
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

// handler returns the handler of /metrics, /healthz and /readyz.
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
	mux.HandleFunc("/healthz", healthy)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-d.tabled:
			fmt.Fprintln(w, "ok")
		default:
			http.Error(w, "no table of services received from the controller yet", http.StatusServiceUnavailable)
		}
	})
	return ownhost.Guard(mux)
}

func healthy(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }
