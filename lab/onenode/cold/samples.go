// SPDX-License-Identifier: Apache-2.0

package cold

import (
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/lab/onenode"
)

// Sample is one cold request. Times are in milliseconds since just before connect().
type Sample struct {
	Connected float64 `json:"connected_ms"`
	FirstByte float64 `json:"first_byte_ms"`
	Done      float64 `json:"done_ms"`
	// Wake is the instance's own record of the wake.
	Wake *lifecycle.Waterfall `json:"wake,omitempty"`
	// Error is why the request was lost; empty if it was answered.
	Error string `json:"error,omitempty"`
}

// Samples are all samples in the order in which they were taken.
type Samples struct {
	Floor []onenode.FloorSample `json:"floor"`
	Cold  []Sample              `json:"cold"`
}
