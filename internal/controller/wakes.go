// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
)

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

// forget removes the metrics of a service.
func (w *wakes) forget(k runtime.Key) {
	namespace, name := k.Split()
	w.each.DeleteLabelValues(namespace, name)
}

// observe counts phases of a service's wake that have ended.
func (w *wakes) observe(k runtime.Key, news []lifecycle.Phase) {
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
