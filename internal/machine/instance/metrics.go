// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
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

	"wangell.loutres.me/internal/base/ownhost"
)

// metricsTimeout bounds how long a scrape waits for the daemon.
const metricsTimeout = 2 * time.Second

// daemonClient asks the daemon by its unix socket.
func daemonClient(socket string) *http.Client {
	return &http.Client{
		Timeout: metricsTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			},
		},
	}
}

// daemonGatherer gathers the daemon's metrics from its unix socket.
func daemonGatherer(socket string) prometheus.Gatherer {
	client := daemonClient(socket)
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := fetch(client)
		if err != nil {
			return nil, fmt.Errorf("metrics of the daemon: %w", err)
		}
		return families, nil
	})
}

// fetch reads the daemon's metrics.
func fetch(client *http.Client) ([]*dto.MetricFamily, error) {
	response, err := client.Get("http://daemon/metrics")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics: %s", response.Status)
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

// metricsHandler serves the metrics of all parts at /metrics, and readiness to wake services at /readyz. ready
// returns the reason why they cannot; more are further metrics of this process.
func metricsHandler(c prometheus.Collector, daemonSocket string, ready func() error,
	more ...prometheus.Collector) http.Handler {
	own := ownRegistry()
	own.MustRegister(c)
	own.MustRegister(more...)
	all := prometheus.Gatherers{own, daemonGatherer(daemonSocket)}
	mux := http.NewServeMux()
	// Without the daemon, the controller's metrics are still served.
	mux.Handle("GET /metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	return ownhost.Guard(mux)
}

// restored returns what was put back of what others had removed or changed on the machine, by kind: of pods' networks,
// and of the way out of them.
func (u *up) restored() map[string]uint64 {
	all := map[string]uint64{}
	add := func(counts map[string]uint64) {
		for kind, n := range counts {
			all[kind] += n
		}
	}
	if u.egress != nil {
		add(u.egress.Restored())
	}
	if u.runtime != nil {
		add(u.runtime.Restored())
	}
	return all
}

// restoredCollector exports what was put back on the machine, by kind.
type restoredCollector struct{ counts func() map[string]uint64 }

var restoredTotal = prometheus.NewDesc("wangell_machine_restored_total",
	"How often the instance has put back what somebody else had removed or changed on the machine.", []string{"kind"}, nil)

// Describe implements prometheus.Collector.
func (c restoredCollector) Describe(ch chan<- *prometheus.Desc) { ch <- restoredTotal }

// Collect implements prometheus.Collector.
func (c restoredCollector) Collect(ch chan<- prometheus.Metric) {
	for kind, n := range c.counts() {
		ch <- prometheus.MustNewConstMetric(restoredTotal, prometheus.CounterValue, float64(n), kind)
	}
}

// listenMetrics opens the address of the metrics; nil if there is none.
func listenMetrics(address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w: give another --metrics-address, or none (--metrics-address '')", err)
	}
	return l, nil
}
