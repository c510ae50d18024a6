// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller/images"
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

// message describes the pull; empty if there is none.
func (p *Pull) message() string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("image %q is being pulled%s", p.Image, images.Progress(uint64(p.Done), uint64(p.Total)))
}

// PodStatus is the status of a pod.
type PodStatus struct {
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
	Frozen *FrozenStatus `json:"frozen,omitempty"`
}

// Status is the status of a service.
type Status struct {
	// Service is the manifest with its Status. The manifest must not be changed.
	Service v1alpha1.WangellService `json:"service"`
	Pods    []PodStatus             `json:"pods,omitempty"`
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
	Images images.ImageStatus `json:"-"`
	// Lazy says whether the pods start before their image is complete, on a cluster.
	Lazy images.LazyPulls `json:"-"`
	// Pull is the pull of its image in progress, on one machine; nil if there is none.
	Pull *Pull `json:"pull,omitempty"`
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
