// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"net/netip"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/reservation"
)

// Traffic counts what went through the gate. Bytes are IP lengths; In is from client to pod.
type Traffic struct {
	OpenFlows uint32 `json:"openFlows"`
	NewFlows  uint64 `json:"newFlows"`
	BytesIn   uint64 `json:"bytesIn"`
	BytesOut  uint64 `json:"bytesOut"`
	// Denied is the number of connection requests dropped because of their source. Daemons report it at most once a
	// minute. It is 0 for a single pod.
	Denied uint64 `json:"denied,omitempty"`
	// Requests is the number of requests, and OpenRequests the number of those that are not answered yet. They are 0
	// unless requests are balanced.
	Requests     uint64 `json:"requests,omitempty"`
	OpenRequests uint32 `json:"openRequests,omitempty"`
	// FailedRequests is the number of requests that got no answer, or one with a status code of 500 or more. It is 0
	// for a single pod.
	FailedRequests uint64 `json:"failedRequests,omitempty"`
	// RequestsPerSecond is the number of requests started in the last second or two.
	RequestsPerSecond float64 `json:"requestsPerSecond,omitempty"`
}

// Pull is the progress of fetching an image on one machine.
type Pull struct {
	Image string `json:"image"`
	// Done and Total are packed bytes; Total is 0 while it is not known.
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// Message describes the pull; empty if there is none.
func (p *Pull) Message() string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("image %q is being pulled%s", p.Image, Progress(uint64(p.Done), uint64(p.Total)))
}

// Pod is the status of a pod.
type Pod struct {
	// ID is the runtime's ID; empty while the pod has no network.
	ID   string     `json:"id,omitempty"`
	Addr netip.Addr `json:"address,omitzero"`
	// Node is the home node; empty while the pod has no network.
	Node string `json:"node,omitempty"`
	// State is the name of a lifecycle.PodState, or frozen for one that serves and is frozen.
	State   string    `json:"state"`
	Started time.Time `json:"started,omitzero"`
	Traffic Traffic   `json:"traffic"`
	// Frozen is set while the pod is frozen.
	Frozen *Frozen `json:"frozen,omitempty"`
}

// Status is the status of a service.
type Status struct {
	// Service is the manifest with its Status. The manifest must not be changed.
	Service v1alpha1.WangellService `json:"service"`
	Pods    []Pod                   `json:"pods,omitempty"`
	// Serving is the number of pods that get new flows, Desired the number of pods that the service should have now: 0
	// while it sleeps.
	Serving int `json:"serving"`
	Desired int `json:"desired"`
	// NoDaemon is set if no daemon has been connected for some seconds, so that nothing serves. Only StatusOf sets
	// it.
	NoDaemon bool `json:"-"`
	// Starting is set until daemons have this controller's first list of nodes, by which they divide service
	// addresses: until then, possibly no node answers a new address. Only StatusOf sets it.
	Starting bool `json:"-"`
	// Removing is set while pods of an earlier service with this name are ending: clients are refused until then. Only
	// StatusOf sets it.
	Removing bool `json:"-"`
	// Unreported is set while pods from before this controller's start may run that no daemon has reported to it yet:
	// Serving and Desired do not count them. Only StatusOf sets it.
	Unreported bool `json:"-"`
	// Outlook says when it has a pod without demand; nil unless spec.sleep asks for that.
	Outlook *Outlook `json:"outlook,omitempty"`
	// Pressure is the scarcity in the gates that affects the service; that of whole nodes only while the service is
	// in use.
	Pressure Pressure `json:"pressure,omitzero"`
	// Lost describes a pod on a silent node, beside which no other may start, and what to do; empty if there is none.
	// It is part of Service's message as well.
	Lost string `json:"-"`
	// Images reports whether nodes have the service's images ahead of need; zero if that is not known yet, and on one
	// machine.
	Images Images `json:"-"`
	// Lazy says whether the pods start before their image is complete, on a cluster.
	Lazy LazyPulls `json:"-"`
	// Pull is the pull of its image in progress, on one machine; nil if there is none.
	Pull *Pull `json:"pull,omitempty"`
	// HistorySince is when this controller began to lead, if the service is older: earlier wakes are not known, except
	// the last one. Otherwise it is zero, as on one machine.
	HistorySince time.Time `json:"historySince,omitzero"`
	// LastWake is the last wake; nil if there was none.
	LastWake *lifecycle.Waterfall `json:"lastWake,omitempty"`
	// Traffic is that of all pods since the controller started, and of adopted ones since they did.
	Traffic Traffic `json:"traffic"`
	// NotFrozen says why the pods run although the service is idle for freezeAfter; empty if that is not the case.
	NotFrozen string `json:"notFrozen,omitempty"`
	// Reservations describes the requests that frozen pods have given back, on a cluster.
	Reservations reservation.Summary `json:"reservations,omitzero"`
	// Slept is how long it has slept since the controller began to lead, and what that saved.
	Slept Slept `json:"slept,omitzero"`
}

// Frozen is how a frozen pod is kept.
type Frozen struct {
	Since time.Time `json:"since"`
	// ResidentBytes and SwappedBytes are its memory in RAM and in swap; 0 while they are not measured.
	ResidentBytes uint64 `json:"residentBytes,omitempty"`
	SwappedBytes  uint64 `json:"swappedBytes,omitempty"`
	// Reason says why its memory was not given back; empty if it was, or if it should stay.
	Reason string `json:"reason,omitempty"`
}

// Outlook says when a service has a pod without demand.
type Outlook struct {
	// Wanted is WantedBySchedule or WantedByForecast while it has one for that reason; otherwise empty.
	Wanted string `json:"wanted,omitempty"`
	// Change is when that changes next if nobody uses the service; zero if it does not.
	Change time.Time `json:"change,omitzero"`
	// Basis is a forecast.Basis; empty without spec.sleep.predict.
	Basis string `json:"basis,omitempty"`
	// IdleTimes is the number of times between uses that are known.
	IdleTimes int `json:"idleTimes,omitempty"`
	// Prewarm is when a pod is to be ready after the last use, and Keep for how long, in seconds.
	Prewarm float64 `json:"prewarmSeconds,omitempty"`
	Keep    float64 `json:"keepSeconds,omitempty"`
}

// Reasons for a pod without demand: Outlook.Wanted.
const (
	WantedBySchedule = "schedule"
	WantedByForecast = "forecast"
)

// Slept is how long a service has slept since the controller began to lead, and what one pod would have reserved
// meanwhile. The sums do not include the present sleep, so that they do not change during it: its share follows from
// Since and the requests.
type Slept struct {
	// Since is when the present sleep began; zero while the service is awake.
	Since time.Time `json:"since,omitzero"`
	// Seconds is the sum of its sleeps that have ended.
	Seconds float64 `json:"seconds"`
	// CPU, in core-seconds, and Memory, in byte-seconds, are what those sleeps saved; 0 if it requests none.
	CPU    float64 `json:"cpu,omitempty"`
	Memory float64 `json:"memory,omitempty"`
	// RequestCPU, in cores, and RequestMemory, in bytes, are the requests of one pod; 0 if it has none.
	RequestCPU    float64 `json:"requestCPU,omitempty"`
	RequestMemory float64 `json:"requestMemory,omitempty"`
}
