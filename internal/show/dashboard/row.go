// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"math"
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/show/view"
	"wangell.loutres.me/internal/status"
)

// Row describes a service to a browser. It is sent when it changes. The load, which changes all the time, comes as a
// Load.
type Row struct {
	// ID is the number of the service in this stream.
	ID        int    `json:"id"`
	Namespace string `json:"ns"`
	Name      string `json:"name"`
	Address   string `json:"addr"`
	Image     string `json:"image"`
	State     string `json:"state"`
	Message   string `json:"msg,omitempty"`
	Serving   int    `json:"serving"`
	Desired   int    `json:"desired"`
	// Idle is the idleTimeout in seconds.
	Idle int64 `json:"idle"`
	// Since is the Unix time in seconds when it fell asleep; 0 while it is awake. Asleep, CPU and Memory are the
	// seconds, core-seconds and byte-seconds of earlier sleeps; the present sleep adds its time, multiplied by CPUs
	// and Bytes.
	Since  int64   `json:"since,omitempty"`
	Asleep float64 `json:"asleep"`
	CPU    float64 `json:"cpu,omitempty"`
	Memory float64 `json:"mem,omitempty"`
	CPUs   float64 `json:"cpus,omitempty"`
	Bytes  float64 `json:"bytes,omitempty"`
	// Wakes is the number of wakes. Wake is the duration of the last one until its pod listened, in microseconds, and
	// Result its result.
	Wakes  uint64 `json:"wakes,omitempty"`
	Wake   int64  `json:"wake,omitempty"`
	Result string `json:"result,omitempty"`
	// History is the Unix time in seconds since when wakes are known, if an earlier controller led; otherwise 0.
	History int64 `json:"history,omitempty"`
	// Requests is set if requests are balanced: loads then count them instead of connections.
	Requests bool `json:"req,omitempty"`
}

// rowOf describes a service with a number.
func rowOf(id int, s status.Status) Row {
	r := Row{
		ID: id, Namespace: s.Service.Namespace, Name: s.Service.Name, Address: view.Address(s),
		Image: s.Service.Spec.Image, State: s.Service.Status.State, Message: view.Message(s),
		Serving: s.Serving, Desired: s.Desired, Idle: s.Service.Spec.IdleTimeout,
		Asleep: math.Round(s.Slept.Seconds), CPU: round(s.Slept.CPU), Memory: round(s.Slept.Memory),
		CPUs: s.Slept.RequestCPU, Bytes: s.Slept.RequestMemory, Requests: s.Service.Spec.BalancesRequests(),
	}
	if !s.Slept.Since.IsZero() {
		r.Since = s.Slept.Since.Unix()
	}
	if !s.HistorySince.IsZero() {
		r.History = s.HistorySince.Unix()
	}
	if w := s.LastWake; w != nil {
		r.Wakes, r.Result = w.Number, string(w.Result)
		if at, ok := w.At(lifecycle.PhaseListening); ok {
			r.Wake = at.Microseconds()
		}
	}
	return r
}

// Pod describes a pod to a browser. It is sent when it changes.
type Pod struct {
	ID      int    `json:"id"` // the number of the pod in this stream
	Name    string `json:"name"`
	Node    string `json:"node,omitempty"`
	Address string `json:"addr,omitempty"`
	State   string `json:"state"`
	Started int64  `json:"started,omitempty"` // Unix time in seconds
}

// podOf describes a pod with a number.
func podOf(id int, p status.Pod) Pod {
	out := Pod{ID: id, Name: p.ID, Node: p.Node, State: p.State}
	if p.Addr.IsValid() {
		out.Address = p.Addr.String()
	}
	if !p.Started.IsZero() {
		out.Started = p.Started.Unix()
	}
	return out
}

// Load is the load of a service or a pod: its number, open flows, new flows per second, IP bytes per second from and
// to clients, and for a service the Unix time of its last packet in seconds. Where requests are balanced, they are
// counted instead of flows. It is an array, because loads are most of the traffic.
type Load [6]float64

// loadOf returns the load between two samples, the second of which was taken at after.
func loadOf(id int, before, after status.Traffic, elapsed time.Duration, latest int64, requests bool) Load {
	perSecond := func(before, after uint64) float64 {
		if after < before {
			before = 0 // its counter started from zero
		}
		if elapsed <= 0 {
			return 0
		}
		return round(float64(after-before) / elapsed.Seconds())
	}
	open, rate := float64(after.OpenFlows), perSecond(before.NewFlows, after.NewFlows)
	if requests {
		open, rate = float64(after.OpenRequests), round(after.RequestsPerSecond)
	}
	return Load{
		float64(id), open, rate,
		perSecond(before.BytesIn, after.BytesIn), perSecond(before.BytesOut, after.BytesOut), float64(latest),
	}
}

// latestOf is the time of the last packet in Unix seconds; 0 if there was none.
func latestOf(s status.Status) int64 {
	if t := s.Service.Status.LatestRequest; t != nil {
		return t.Unix()
	}
	return 0
}

// round keeps three significant digits, and all digits before the point: more would not be visible, and cost bytes.
func round(v float64) float64 {
	if v == 0 || math.Abs(v) >= 100 {
		return math.Round(v)
	}
	scale := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// Count is the number of pods of a service, by condition.
type Count struct {
	// Good pods serve. Failed ones have ended by themselves, or could not be started: at least 1 while the service
	// has failed.
	Good, Failed uint16
	// Coming ones are being started, Going ones are being drained and stopped.
	Coming, Going uint16
}

// countOf counts the pods of a service.
func countOf(s status.Status) (c Count) {
	for _, p := range s.Pods {
		switch p.State {
		case lifecycle.PodServing.String():
			c.Good++
		case lifecycle.PodStarting.String():
			c.Coming++
		case lifecycle.PodExited.String():
			c.Failed++
		default:
			c.Going++
		}
	}
	if s.Service.Status.State == lifecycle.Failed.String() {
		c.Failed = max(c.Failed, 1)
	}
	return c
}
