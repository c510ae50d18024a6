// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metricsTimeout bounds how long a scrape waits for the daemon.
const metricsTimeout = 2 * time.Second

// daemonGatherer gathers the metrics of the daemon from its unix socket.
func daemonGatherer(socket string) prometheus.Gatherer {
	client := &http.Client{
		Timeout: metricsTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			},
		},
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := fetch(client)
		if err != nil {
			return nil, fmt.Errorf("metrics of the daemon: %w", err)
		}
		return families, nil
	})
}

func fetch(client *http.Client) ([]*dto.MetricFamily, error) {
	response, err := client.Get("http://daemon/metrics")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answer %s", response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	byName, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, err
	}
	return slices.Collect(maps.Values(byName)), nil
}

// ownRegistry returns a registry with the metrics of this process.
func ownRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// listenMetrics opens the address of the metrics.
func (u *up) listenMetrics() error {
	if u.MetricsAddress == "" {
		return nil
	}
	var err error
	if u.metrics, err = net.Listen("tcp", u.MetricsAddress); err != nil {
		return fmt.Errorf("metrics: %w: give another --metrics-address, or none (--metrics-address '')", err)
	}
	return nil
}

// serveMetrics serves the metrics of all parts at /metrics, and at /readyz whether services can wake.
func (u *up) serveMetrics() {
	if u.metrics == nil {
		return
	}
	own := ownRegistry()
	own.MustRegister(u.controller.Collector())
	all := prometheus.Gatherers{own, daemonGatherer(u.daemonSocket())}
	mux := http.NewServeMux()
	// Without the daemon, what the controller knows is still told.
	mux.Handle("GET /metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := u.controller.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: metricsTimeout, ReadTimeout: metricsTimeout, IdleTimeout: time.Minute}
	u.stopParts = append(u.stopParts, server.Close)
	u.parts.Go(func() {
		if err := server.Serve(u.metrics); !errors.Is(err, http.ErrServerClosed) {
			u.Log.Error("metrics are not served any more", "error", err)
		}
	})
}
