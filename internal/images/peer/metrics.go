// SPDX-License-Identifier: Apache-2.0

package peer

import "github.com/prometheus/client_golang/prometheus"

// Sources and destinations of bytes.
const (
	fromRegistry  = "registry"
	fromCache     = "cache"
	fromPeer      = "peer"
	toContainerd  = "containerd"
	toPeer        = "peer"
	toSnapshotter = "snapshotter"
)

type metrics struct {
	received, sent     *prometheus.CounterVec
	failed             *prometheus.CounterVec
	passed, mismatches prometheus.Counter
	banned             prometheus.Counter
	shared             prometheus.Gauge
}

func newMetrics() metrics {
	const prefix = "wangell_image_mirror_"
	m := metrics{
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "received_bytes_total", Help: "Bytes of images that the node's mirror has received, by source.",
		}, []string{"source"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "sent_bytes_total", Help: "Bytes of images that the node's mirror has sent, by destination.",
		}, []string{"destination"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "failed_requests_total",
			Help: "Requests for pieces that were refused, or whose answer stalled or ended early, by source.",
		}, []string{"source"}),
		passed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "passed_total",
			Help: "Requests of containerd for shared images that the mirror left to the registry.",
		}),
		mismatches: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "mismatches_total", Help: "Blobs that were put together and did not have their digest.",
		}),
		banned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "banned_peers_total",
			Help: "Peers that were not asked for a while because they had sent wrong pieces.",
		}),
		shared: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "shared_blobs", Help: "Blobs of containerd that the node's mirror has reported to the controller.",
		}),
	}
	for _, s := range []string{fromRegistry, fromCache, fromPeer} {
		m.received.WithLabelValues(s)
		m.failed.WithLabelValues(s)
	}
	for _, d := range []string{toContainerd, toPeer, toSnapshotter} {
		m.sent.WithLabelValues(d)
	}
	return m
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.received, m.sent, m.failed, m.passed, m.mismatches, m.banned, m.shared}
}
