// SPDX-License-Identifier: Apache-2.0

package reservation

// Summary describes how freezing has changed the resource requests of a service's pods. It is the zero value if
// all pods have the requests of their specs.
type Summary struct {
	// CPU, in cores, and Memory, in bytes, are what frozen pods have given back to the scheduler.
	CPU    float64 `json:"cpu,omitempty"`
	Memory float64 `json:"memory,omitempty"`
	// Short names a pod that runs with less reserved than it requests, with the reason; empty if there is none.
	Short string `json:"short,omitempty"`
	// ShortOn is the node of such a pod if the node lacks room for it; otherwise empty.
	ShortOn string `json:"shortOn,omitempty"`
	// Kept says why a frozen pod keeps requests that it could give back; empty if there is no such pod.
	Kept string `json:"kept,omitempty"`
}
