// SPDX-License-Identifier: Apache-2.0

package lazy

import "github.com/prometheus/client_golang/prometheus"

// Descriptions of the metrics that come from Stats.
var (
	layersDesc  = prometheus.NewDesc(metricsPrefix+"layers", "Layers that are mounted.", nil, nil)
	missingDesc = prometheus.NewDesc(metricsPrefix+"missing_bytes",
		"Packed bytes of mounted layers that are not on the node yet.", nil, nil)
	completeDesc = prometheus.NewDesc(metricsPrefix+"complete_layers_total",
		"Layers that are complete and verified.", nil, nil)
	receivedDesc = prometheus.NewDesc(metricsPrefix+"received_bytes_total",
		"Packed bytes received, by the reason for the request.", []string{"for"}, nil)
	sourcesDesc = prometheus.NewDesc(metricsPrefix+"source_bytes_total",
		"Packed bytes received, by source: node (what else this node has of the layer), peer (another node), mirror (of "+
			"containerd's settings) or registry.", []string{"source"}, nil)
	distrustedDesc = prometheus.NewDesc(metricsPrefix+"distrusted_total",
		"Times that a layer was found wrong and what other nodes had sent of it was fetched again, from the registry.",
		nil, nil)
	failedDesc = prometheus.NewDesc(metricsPrefix+"failures_total",
		"Reads that ended with EIO, and layers that did not have their digest.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{layersDesc, missingDesc, completeDesc, receivedDesc, sourcesDesc, distrustedDesc,
		failedDesc} {
		ch <- d
	}
	s.store.waits.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	stats := s.Stats()
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	for _, m := range []struct {
		desc   *prometheus.Desc
		kind   prometheus.ValueType
		value  float64
		labels []string
	}{
		{layersDesc, gauge, float64(stats.Blobs), nil},
		{missingDesc, gauge, float64(stats.Missing), nil},
		{completeDesc, counter, float64(stats.Complete), nil},
		{receivedDesc, counter, float64(stats.UrgentBytes), []string{"read"}},
		{receivedDesc, counter, float64(stats.BackgroundBytes), []string{"background"}},
		{sourcesDesc, counter, float64(stats.Sources[fromNode]), []string{fromNode}},
		{sourcesDesc, counter, float64(stats.Sources[fromPeer]), []string{fromPeer}},
		{sourcesDesc, counter, float64(stats.Sources[fromMirror]), []string{fromMirror}},
		{sourcesDesc, counter, float64(stats.Sources[fromRegistry]), []string{fromRegistry}},
		{distrustedDesc, counter, float64(stats.Distrusted), nil},
		{failedDesc, counter, float64(stats.Failures), nil},
	} {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value, m.labels...)
	}
	s.store.waits.Collect(ch)
}
