// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"github.com/prometheus/client_golang/prometheus"

	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/runtime"
)

// meters are the metrics that are counted as things happen; the others are read when asked for.
type meters struct {
	phase *prometheus.HistogramVec
	total prometheus.Histogram
	wakes *prometheus.CounterVec
}

// newMeters makes the metrics. Buckets double from 10 µs to 84 s.
func newMeters() *meters {
	buckets := prometheus.ExponentialBuckets(10e-6, 2, 24)
	m := &meters{
		phase: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "wangell_wake_phase_seconds", Buckets: buckets,
			Help: "How long a phase of a wake took since the end of the phase before it.",
		}, []string{"phase"}),
		total: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "wangell_wake_seconds", Buckets: buckets,
			Help: "Time from the first parked SYN until the pod listened.",
		}),
		wakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wangell_wakes_total", Help: "Wakes that ended, by result.",
		}, []string{"result"}),
	}
	for _, r := range []lifecycle.Result{lifecycle.ResultWarm, lifecycle.ResultFailed, lifecycle.ResultCancelled} {
		m.wakes.WithLabelValues(string(r))
	}
	return m
}

// phases counts phases that have ended.
func (m *meters) phases(news []lifecycle.Phase) {
	for _, p := range news {
		switch p.Name {
		case lifecycle.PhaseSYNSeen:
			continue // the begin; it takes no time
		case lifecycle.PhaseListening:
			m.total.Observe(p.At.Seconds())
		}
		m.phase.WithLabelValues(string(p.Name)).Observe(p.Took.Seconds())
	}
}

var (
	descServices = desc("wangell_services", "Services by state.", "state")
	descPods     = desc("wangell_pods", "Pods that are not yet removed.")
	descByState  = desc("wangell_pods_by_state", "Pods that are not yet removed, by state.", "state")
	descDesired  = desc("wangell_pods_desired", "Pods that all services together are to have now.")
	descDaemons  = desc("wangell_daemons", "Daemons that are connected.")
	descStarting = desc("wangell_starts_in_progress", "Pods that are being started.")
	descOpen     = desc("wangell_service_open_flows", "Connections open at present, by service that was ever used.", "service")
	descFlows    = desc("wangell_service_flows_total", "Connections established, by service that was ever used.", "service")
	descBytes    = desc("wangell_service_bytes_total", "IP bytes to (in) and from (out) the pods, by service that was ever used.", "service", "direction")
	descLatest   = desc("wangell_service_latest_request_timestamp_seconds", "When the service saw a packet last.", "service")
	descDropped  = desc("wangell_wire_dropped_datagrams_total", "Datagrams that were not accepted, by reason.", "reason")
	descMessages = desc("wangell_wire_messages_total", "Messages to (out) and from (in) daemons, repeats not counted.", "direction")
	descRepeats  = desc("wangell_wire_repeats_total", "Segments that had to be sent again.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Collector returns the controller's metrics. Per service there are series only once it was used, so
// sleeping services cost nothing here.
func (c *Controller) Collector() prometheus.Collector { return collector{c} }

type collector struct{ c *Controller }

// Describe implements prometheus.Collector.
func (m collector) Describe(ch chan<- *prometheus.Desc) {
	m.c.meters.phase.Describe(ch)
	m.c.meters.total.Describe(ch)
	m.c.meters.wakes.Describe(ch)
	for _, d := range []*prometheus.Desc{
		descServices, descPods, descByState, descDesired, descDaemons, descStarting, descOpen, descFlows, descBytes, descLatest, descDropped, descMessages, descRepeats,
	} {
		ch <- d
	}
}

// used is what is exported of a service.
type used struct {
	key     runtime.Key
	traffic Traffic
	latest  float64
}

// Collect implements prometheus.Collector.
func (m collector) Collect(ch chan<- prometheus.Metric) {
	c := m.c
	c.meters.phase.Collect(ch)
	c.meters.total.Collect(ch)
	c.meters.wakes.Collect(ch)

	states := map[lifecycle.State]int{}
	var pods, desired, daemons, starting int
	byState := map[string]int{}
	var services []used
	c.call(func() {
		daemons = len(c.peers)
		for _, s := range c.services {
			states[s.machine.State()]++
			pods += len(s.pods)
			desired += s.machine.Desired()
			for _, p := range s.pods {
				byState[p.condition()]++
				if !p.returned {
					starting++
				}
			}
			if s.last != 0 {
				st := s.status()
				services = append(services, used{s.key, st.Traffic, float64(st.Service.Status.LatestRequest.UnixMilli()) / 1000})
			}
		}
	})
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, s := range lifecycle.States() {
		gauge(descServices, float64(states[s]), s.String())
	}
	gauge(descPods, float64(pods))
	gauge(descDesired, float64(desired))
	for _, state := range podConditions {
		gauge(descByState, float64(byState[state]), state)
	}
	gauge(descDaemons, float64(daemons))
	gauge(descStarting, float64(starting))
	for _, u := range services {
		k := string(u.key)
		gauge(descOpen, float64(u.traffic.OpenFlows), k)
		count(descFlows, u.traffic.NewFlows, k)
		count(descBytes, u.traffic.BytesIn, k, "in")
		count(descBytes, u.traffic.BytesOut, k, "out")
		gauge(descLatest, u.latest, k)
	}
	w := c.server.Counters()
	for reason, n := range map[string]uint64{
		"noise": w.DroppedNoise, "version": w.DroppedVersion, "seal": w.DroppedSeal, "replay": w.DroppedReplay,
		"unknown": w.DroppedUnknown, "malformed": w.DroppedMalformed, "limit": w.DroppedLimit,
	} {
		count(descDropped, n, reason)
	}
	count(descMessages, w.SentMessages, "out")
	count(descMessages, w.ReceivedMessages, "in")
	count(descRepeats, w.Repeats)
}
