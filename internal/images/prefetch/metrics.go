// SPDX-License-Identifier: Apache-2.0

package prefetch

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"wangell.loutres.me/internal/node/cri"
)

// metrics count pulls.
type metrics struct {
	pulls   *prometheus.CounterVec
	seconds prometheus.Histogram
	phases  *prometheus.HistogramVec
	bytes   *prometheus.CounterVec
}

func newMetrics() metrics {
	return metrics{
		pulls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wangell_image_pulls_total", Help: "Pulls of images ahead of need, by result.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "wangell_image_pull_seconds", Help: "Duration of pulls ahead of need that succeeded.",
			Buckets: pullBuckets,
		}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "wangell_image_pull_phase_seconds",
			Help: "Duration of the phases of pulls ahead of need: fetch, until the last layer was there, and unpack, " +
				"the rest after that.",
			Buckets: pullBuckets,
		}, []string{"phase"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wangell_image_pull_bytes_total",
			Help: "Packed bytes of layers that were fetched ahead of need, by where they came from.",
		}, []string{"source"}),
	}
}

// pullBuckets are the bounds of histograms of pulls, in seconds.
var pullBuckets = []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000}

// fetched counts the bytes of a pull that began, got its last layer and ended at these times.
func (m *metrics) fetched(bytes uint64, began, last, ended time.Time) {
	m.bytes.WithLabelValues("registry").Add(float64(bytes))
	// The clock that containerd reads is not monotonic.
	last = time.Unix(0, min(max(last.UnixNano(), began.UnixNano()), ended.UnixNano()))
	m.phases.WithLabelValues("fetch").Observe(last.Sub(began.Round(0)).Seconds())
	m.phases.WithLabelValues("unpack").Observe(ended.Round(0).Sub(last).Seconds())
}

// pulled counts a pull that has ended with an error or nil.
func (m *metrics) pulled(err error, took time.Duration) {
	result := "Pulled"
	if err == nil {
		m.seconds.Observe(took.Seconds())
	} else {
		result = cri.ReasonPullFailed
		var known *cri.ImageError
		if errors.As(err, &known) {
			result = known.Reason
		}
	}
	m.pulls.WithLabelValues(result).Inc()
}
