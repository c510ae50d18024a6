// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/reservation"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

var (
	descServices = desc("wangell_services", "Services by state.", "state")
	descPods     = desc("wangell_pods", "Pods that have not been removed.")
	descByState  = desc("wangell_pods_by_state", "Pods that have not been removed, by state.", "state")
	descDesired  = desc("wangell_pods_desired", "Pods that all services together should have now.")
	descDaemons  = desc("wangell_daemons", "Connected daemons.")
	descStarting = desc("wangell_starts_in_progress", "Pods that are being started.")
	descOpen     = desc("wangell_service_open_flows",
		"Open connections, by service that has been used.", "namespace", "service")
	descFlows = desc("wangell_service_flows_total",
		"Connections established, by service that has been used.", "namespace", "service")
	descBytes = desc("wangell_service_bytes_total",
		"IP bytes to (in) and from (out) the pods, by service that has been used.", "namespace", "service", "direction")
	descRequests = desc("wangell_requests_total",
		"Requests that have ended, by class of the status code, where requests are balanced.",
		"namespace", "service", "pod", "code")
	descOpenRequests = desc("wangell_open_requests",
		"Requests that are not answered yet, where requests are balanced. Those without a pod wait.",
		"namespace", "service", "pod")
	descLayer = desc("wangell_pod_layer_bytes",
		"Bytes that a pod has written into its own layer, which are lost when it ends. On one machine.",
		"namespace", "service", "pod")
	descPeriods = desc("wangell_pod_cpu_periods_total",
		"Periods in which a container ran under a CPU limit. On one machine.", "namespace", "service", "pod", "container")
	descThrottled = desc("wangell_pod_cpu_throttled_periods_total",
		"Periods in which a container had used up its CPU limit and waited. On one machine.",
		"namespace", "service", "pod", "container")
	descLatest = desc("wangell_service_latest_request_timestamp_seconds",
		"Time of the last packet, by service that has been used.", "namespace", "service")
	descAsleep = desc("wangell_service_asleep_seconds_total",
		"Time without a pod, by service that has been used.", "namespace", "service")
	descInState = desc("wangell_service_state_seconds_total",
		"Time in each state since the controller began to lead, by service that has been used.",
		"namespace", "service", "state")
	descFrozen = desc("wangell_service_frozen_bytes",
		"Memory of frozen pods, in RAM (resident) and in swap (swapped), by service that has any.",
		"namespace", "service", "where")
	descFreedCPU = desc("wangell_service_freed_cpu_cores",
		"CPU requests that frozen pods have given back to the scheduler, by service that has any. On a cluster.",
		"namespace", "service")
	descFreedMemory = desc("wangell_service_freed_memory_bytes",
		"Memory requests that frozen pods have given back to the scheduler, by service that has any. On a cluster.",
		"namespace", "service")
	descSavedCPU = desc("wangell_service_saved_cpu_core_seconds_total",
		"CPU that one pod would have requested while the service was asleep.", "namespace", "service")
	descSavedMemory = desc("wangell_service_saved_memory_byte_seconds_total",
		"Memory that one pod would have requested while the service was asleep.", "namespace", "service")
	descDropped  = desc("wangell_wire_dropped_datagrams_total", "Datagrams that were dropped, by reason.", "reason")
	descMessages = desc("wangell_wire_messages_total",
		"Messages to (out) and from (in) daemons, without repeats.", "direction")
	descRepeats = desc("wangell_wire_repeats_total", "Segments that had to be sent again.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Collector returns the controller's metrics. A service has series of its own only once it has been used, so that
// unused services cost nothing here.
func (c *Controller) Collector() prometheus.Collector { return collector{c} }

type collector struct{ c *Controller }

// Describe implements prometheus.Collector.
func (m collector) Describe(ch chan<- *prometheus.Desc) {
	for _, w := range m.c.engine.wakes.collectors() {
		w.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{
		descServices, descPods, descByState, descDesired, descDaemons, descStarting, descOpen, descFlows, descBytes,
		descRequests, descOpenRequests, descLatest, descAsleep, descSavedCPU, descSavedMemory, descDropped, descMessages,
		descRepeats, descLayer, descPeriods, descThrottled,
		descInState, descFrozen, descFreedCPU, descFreedMemory,
	} {
		ch <- d
	}
}

// snapshot holds the exported values of services and daemons.
type snapshot struct {
	states                           map[lifecycle.State]int
	byState                          map[lifecycle.PodState]int
	pods, desired, daemons, starting int
	used                             []usedService
	layers                           []podLayer
	throttles                        []podThrottle
}

// podThrottle is how much CPU limits have slowed the containers of a pod.
type podThrottle struct {
	service    v1alpha1.Key
	pod        string
	containers []runtime.ContainerUsage
}

// podLayer is what a pod has written into its own layer.
type podLayer struct {
	service v1alpha1.Key
	pod     string
	bytes   int64
}

// usedService holds the exported values of a service that has been used.
type usedService struct {
	key     v1alpha1.Key
	traffic status.Traffic
	latest  float64 // seconds since the epoch
	saved   savings
	answers []podAnswers // if requests are balanced
	states  map[lifecycle.State]time.Duration
	frozen  *[2]uint64 // bytes of frozen pods in RAM and in swap; nil if there are none
	freed   reservation.Summary
}

// classes are the names of the classes of answers.
var classes = [wire.Classes]string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"}

// snapshot takes a snapshot, on the loop.
func (e *engine) snapshot() snapshot {
	n := snapshot{
		states: map[lifecycle.State]int{}, byState: map[lifecycle.PodState]int{}, daemons: len(e.daemons.peers),
	}
	for _, s := range e.table.services {
		n.states[s.machine.State()]++
		n.pods += len(s.pods)
		n.desired += s.machine.Desired()
		for _, p := range s.pods {
			n.byState[p.state()]++
			if !p.returned {
				n.starting++
			}
			if p.layer.at != 0 {
				n.layers = append(n.layers, podLayer{s.key, p.rt.ID, p.layer.bytes})
			}
			if len(p.throttle.containers) > 0 {
				n.throttles = append(n.throttles, podThrottle{s.key, p.rt.ID, p.throttle.containers})
			}
		}
		if s.lastPacket != 0 {
			st := s.status()
			latest := float64(st.Service.Status.LatestRequest.UnixMilli()) / 1000
			saved := s.sleep.until(monotime.Now(), requestsOf(&s.spec.Spec))
			u := usedService{
				key: s.key, traffic: st.Traffic, latest: latest, saved: saved, answers: s.answersByPod(),
				states: s.spent.until(monotime.Now()),
			}
			if resident, swapped, any := s.frozenBytes(); any {
				u.freed = e.relief.reservations(s)
				u.frozen = &[2]uint64{resident, swapped}
			}
			n.used = append(n.used, u)
		}
	}
	return n
}

// Collect implements prometheus.Collector.
func (m collector) Collect(ch chan<- prometheus.Metric) {
	for _, w := range m.c.engine.wakes.collectors() {
		w.Collect(ch)
	}
	var n snapshot
	m.c.loop.call(func() { n = m.c.engine.snapshot() })
	for _, s := range lifecycle.States() {
		gauge(ch, descServices, float64(n.states[s]), s.String())
	}
	for _, s := range lifecycle.PodStates() {
		gauge(ch, descByState, float64(n.byState[s]), s.String())
	}
	gauge(ch, descPods, float64(n.pods))
	gauge(ch, descDesired, float64(n.desired))
	gauge(ch, descDaemons, float64(n.daemons))
	gauge(ch, descStarting, float64(n.starting))
	for _, l := range n.layers {
		namespace, name := l.service.Split()
		gauge(ch, descLayer, float64(l.bytes), namespace, name, l.pod)
	}
	for _, t := range n.throttles {
		namespace, name := t.service.Split()
		for _, c := range t.containers {
			count(ch, descPeriods, float64(c.Periods), namespace, name, t.pod, c.Name)
			count(ch, descThrottled, float64(c.Throttled), namespace, name, t.pod, c.Name)
		}
	}
	for _, u := range n.used {
		namespace, name := u.key.Split()
		gauge(ch, descOpen, float64(u.traffic.OpenFlows), namespace, name)
		count(ch, descFlows, float64(u.traffic.NewFlows), namespace, name)
		count(ch, descBytes, float64(u.traffic.BytesIn), namespace, name, "in")
		count(ch, descBytes, float64(u.traffic.BytesOut), namespace, name, "out")
		for _, a := range u.answers {
			gauge(ch, descOpenRequests, float64(a.open), namespace, name, a.pod)
			for class, n := range a.ended {
				count(ch, descRequests, float64(n), namespace, name, a.pod, classes[class])
			}
		}
		gauge(ch, descLatest, u.latest, namespace, name)
		count(ch, descAsleep, u.saved.asleep.Seconds(), namespace, name)
		for state, d := range u.states {
			count(ch, descInState, d.Seconds(), namespace, name, state.String())
		}
		if u.frozen != nil {
			gauge(ch, descFrozen, float64(u.frozen[0]), namespace, name, "resident")
			gauge(ch, descFrozen, float64(u.frozen[1]), namespace, name, "swapped")
			gauge(ch, descFreedCPU, u.freed.CPU, namespace, name)
			gauge(ch, descFreedMemory, u.freed.Memory, namespace, name)
		}
		if v := u.saved.cpu; !math.IsNaN(v) {
			count(ch, descSavedCPU, v, namespace, name)
		}
		if v := u.saved.memory; !math.IsNaN(v) {
			count(ch, descSavedMemory, v, namespace, name)
		}
	}
	collectWire(ch, m.c.server.Counters())
}

// collectWire exports the counters of the wire.
func collectWire(ch chan<- prometheus.Metric, w wire.Counters) {
	for reason, n := range map[string]uint64{
		"noise": w.DroppedNoise, "version": w.DroppedVersion, "seal": w.DroppedSeal, "replay": w.DroppedReplay,
		"unknown": w.DroppedUnknown, "malformed": w.DroppedMalformed, "limit": w.DroppedLimit,
	} {
		count(ch, descDropped, float64(n), reason)
	}
	count(ch, descMessages, float64(w.SentMessages), "out")
	count(ch, descMessages, float64(w.ReceivedMessages), "in")
	count(ch, descRepeats, float64(w.Repeats))
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func count(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

// wakes keeps the waterfalls of the most recent wakes, and the metrics of all.
type wakes struct {
	ring  lifecycle.Ring
	phase *prometheus.HistogramVec
	total prometheus.Histogram
	each  *prometheus.HistogramVec // by namespace and service
	count *prometheus.CounterVec
	news  func(lifecycle.Waterfall) // may be nil
}

// newWakes returns the metrics. The buckets double from 10 µs to 84 s.
func newWakes(news func(lifecycle.Waterfall)) *wakes {
	buckets := prometheus.ExponentialBuckets(10e-6, 2, 24)
	w := &wakes{
		news: news,
		phase: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "wangell_wake_phase_seconds", Buckets: buckets,
			Help: "Duration of each phase of a wake, since the end of the previous phase.",
		}, []string{"phase"}),
		total: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "wangell_wake_seconds", Buckets: buckets,
			Help: "Time from the first parked SYN until the pod listened.",
		}),
		// Native histograms only: one series per service, instead of one per bucket.
		each: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "wangell_service_wake_seconds", NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			NativeHistogramMinResetDuration: 24 * time.Hour,
			Help:                            "Time from the first parked SYN until the pod listened, by service.",
		}, []string{"namespace", "service"}),
		count: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wangell_wakes_total", Help: "Wakes that have ended, by result.",
		}, []string{"result"}),
	}
	for _, r := range []lifecycle.Result{lifecycle.ResultWarm, lifecycle.ResultFailed, lifecycle.ResultCancelled} {
		w.count.WithLabelValues(string(r))
	}
	return w
}

// collectors are the metrics.
func (w *wakes) collectors() []prometheus.Collector {
	return []prometheus.Collector{w.phase, w.total, w.each, w.count}
}

// record records the news of a service's wake.
func (w *wakes) record(s *service, r lifecycle.Record) {
	if r.First {
		now := monotime.Now()
		r.Waterfall.Start = time.Now().Add(-now.Sub(r.Waterfall.SYNSeen))
	} else if s.lastWake != nil && s.lastWake.Number == r.Waterfall.Number {
		r.Waterfall.Start = s.lastWake.Start
	}
	w.ring.Put(r)
	s.lastWake = &r.Waterfall
	w.observe(s.key, r.News)
	if w.news != nil {
		w.news(r.Waterfall)
	}
	if f := r.Waterfall; f.Result != lifecycle.ResultRunning && s.counted < f.Number {
		s.counted = f.Number
		w.count.WithLabelValues(string(f.Result)).Inc()
	}
}

// recall has the last wake of a service under an earlier controller as its last one, unless it has had one since. Its
// number is 0, and it is not in the metrics.
func (w *wakes) recall(s *service, last *v1alpha1.LastWake) {
	if s.lastWake != nil || last == nil || last.Result == string(lifecycle.ResultRunning) {
		return
	}
	f := lifecycle.Waterfall{
		Service: string(s.key), Start: last.Start.Time, Result: lifecycle.Result(last.Result), Reason: last.Reason,
	}
	before := time.Duration(0)
	for _, p := range last.Phases {
		at := time.Duration(p.Ms) * time.Millisecond
		f.Phases = append(f.Phases, lifecycle.Phase{Name: lifecycle.PhaseName(p.Name), At: at, Took: at - before})
		before = at
	}
	s.lastWake = &f
}

// forget removes the metrics of a service.
func (w *wakes) forget(k v1alpha1.Key) {
	namespace, name := k.Split()
	w.each.DeleteLabelValues(namespace, name)
}

// observe counts phases of a service's wake that have ended.
func (w *wakes) observe(k v1alpha1.Key, news []lifecycle.Phase) {
	for _, p := range news {
		switch p.Name {
		case lifecycle.PhaseSYNSeen:
			continue // the beginning; it takes no time
		case lifecycle.PhaseListening:
			w.total.Observe(p.At.Seconds())
			namespace, name := k.Split()
			w.each.WithLabelValues(namespace, name).Observe(p.At.Seconds())
		}
		w.phase.WithLabelValues(string(p.Name)).Observe(p.Took.Seconds())
	}
}
