// SPDX-License-Identifier: Apache-2.0

package coldkube

import "time"

// The sides of the comparison: what answers a request for the same image.
const (
	SideWangell = "wangell"
	// SideFloor is a pod from Wangell's own template, made by hand and polled: the time that the cluster alone takes.
	SideFloor = "floor"
	// SideKnative is a Knative service with default settings.
	SideKnative = "knative"
	// SideKnativeNoToken is a Knative service whose pods have no service account token volume, which favours it.
	SideKnativeNoToken = "knative_notoken"
)

// AllSides are the sides in the order of a round.
var AllSides = []string{SideWangell, SideFloor, SideKnative, SideKnativeNoToken}

// sideTitle has the names of the sides for people.
var sideTitle = map[string]string{
	SideWangell: "Wangell", SideFloor: "floor", SideKnative: "Knative", SideKnativeNoToken: "Knative, no token",
}

// Sample is one cold request and the warm ones after it. Times are in milliseconds since just before connect(), for the
// floor since just before the request for the pod.
type Sample struct {
	Connected float64 `json:"connected_ms"`
	FirstByte float64 `json:"first_byte_ms"`
	// Done is the end of the answer. The summary is about this time.
	Done float64 `json:"done_ms"`
	// At is when the request began; Pod is the pod that answered, Node its node.
	At   time.Time `json:"at"`
	Pod  string    `json:"pod,omitempty"`
	Node string    `json:"node,omitempty"`
	// Phases are the ends of phases: of a wake from Wangell's status, of the floor from the node's runtime.
	Phases map[string]float64 `json:"phases_ms,omitempty"`
	// Warm has the time of each warm request that followed, until the end of the answer.
	Warm []float64 `json:"warm_ms,omitempty"`
	// Error is why the request was lost; empty if it was answered.
	Error string `json:"error,omitempty"`
	// WarmErrors are the errors of lost warm requests.
	WarmErrors []string `json:"warm_errors,omitempty"`
}

// Samples has the samples of each side in the order in which they were taken.
type Samples map[string][]Sample
