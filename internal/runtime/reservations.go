// SPDX-License-Identifier: Apache-2.0

package runtime

// Reservations is what has become of the resource requests of a service's pods because these are, or were, frozen. It
// is the zero value if all pods have the requests of their specs.
type Reservations struct {
	// CPU, in cores, and Memory, in bytes, are what frozen pods have given back to the scheduler.
	CPU    float64 `json:"cpu,omitempty"`
	Memory float64 `json:"memory,omitempty"`
	// Short says which pod runs with less reserved than it asks for, and why; empty if none does.
	Short string `json:"short,omitempty"`
	// ShortOn is the node of such a pod that has no room for it; empty if there is none, or the reason is another one.
	ShortOn string `json:"shortOn,omitempty"`
	// Kept says why a frozen pod keeps requests that it could give back; empty if none does.
	Kept string `json:"kept,omitempty"`
}
