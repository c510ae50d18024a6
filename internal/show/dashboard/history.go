// SPDX-License-Identifier: Apache-2.0

package dashboard

import "time"

const (
	// span is the number of samples kept for each service and pod.
	span = 600
	// maxServices and maxPods bound the memory of the kept samples: 10 kB for each service in use, 2.4 kB for each
	// pod.
	maxServices = 2048
	maxPods     = 4096
)

// sample is a service at a moment.
type sample struct {
	rate float32
	open uint32
	Count
}

// ring keeps the last span values.
type ring[T any] struct {
	values [span]T
	n      int // number of values put so far
}

// put adds a value.
func (r *ring[T]) put(v T) {
	r.values[r.n%span] = v
	r.n++
}

// last returns the last values, oldest first.
func (r *ring[T]) last() []T {
	if r.n <= span {
		return append([]T(nil), r.values[:r.n]...)
	}
	at := r.n % span
	return append(append([]T(nil), r.values[at:]...), r.values[:at]...)
}

// History is the past of one service, in columns. All columns end at the same time, so a shorter one begins later.
type History struct {
	// Times are Unix milliseconds.
	Times  []int64   `json:"t"`
	Rate   []float32 `json:"rate"`
	Open   []uint32  `json:"open"`
	Good   []uint16  `json:"good"`
	Failed []uint16  `json:"failed"`
	Coming []uint16  `json:"coming"`
	Going  []uint16  `json:"going"`
	// Pods are new flows, or requests, per second by the number of the pod.
	Pods map[int][]float32 `json:"pods,omitempty"`
}

// history keeps samples of all services that are in use, in bounded memory.
type history struct {
	times    ring[int64]
	services map[int]*serviceRing
	pods     map[int]*ring[float32]
}

// serviceRing are the samples of a service.
type serviceRing struct {
	ring[sample]
	used int // times.n when it was last in use
}

func newHistory() *history {
	return &history{services: map[int]*serviceRing{}, pods: map[int]*ring[float32]{}}
}

// begin begins a round of samples.
func (h *history) begin(now time.Time) { h.times.put(now.UnixMilli()) }

// service records a service. One that was not in use for the whole span is forgotten.
func (h *history) service(id int, s sample) {
	r := h.services[id]
	if s != (sample{}) {
		if r == nil && len(h.services) < maxServices {
			r = &serviceRing{}
			h.services[id] = r
		}
		if r != nil {
			r.used = h.times.n
		}
	}
	if r == nil {
		return
	}
	if h.times.n-r.used >= span {
		delete(h.services, id)
		return
	}
	r.put(s)
}

// pod records the rate of a pod.
func (h *history) pod(id int, rate float64) {
	r := h.pods[id]
	if r == nil {
		if len(h.pods) >= maxPods {
			return
		}
		r = &ring[float32]{}
		h.pods[id] = r
	}
	r.put(float32(rate))
}

// of returns the past of a service with the given pods.
func (h *history) of(service int, pods []int) History {
	out := History{Times: h.times.last()}
	if r := h.services[service]; r != nil {
		for _, s := range r.last() {
			out.Rate, out.Open = append(out.Rate, s.rate), append(out.Open, s.open)
			out.Good, out.Failed = append(out.Good, s.Good), append(out.Failed, s.Failed)
			out.Coming, out.Going = append(out.Coming, s.Coming), append(out.Going, s.Going)
		}
	}
	for _, id := range pods {
		if r := h.pods[id]; r != nil {
			if out.Pods == nil {
				out.Pods = map[int][]float32{}
			}
			out.Pods[id] = r.last()
		}
	}
	return out
}
