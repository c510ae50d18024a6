// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync/atomic"

	"wangell.loutres.me/internal/node/freezer"
)

// podMemory is the state of the memory of a pod that is frozen from time to time.
type podMemory struct {
	// reclaimed is set once its memory was given back for the first time.
	reclaimed atomic.Bool
	// used is the memory that the pod used between the last two times; nil if unknown or little.
	used atomic.Pointer[freezer.WorkingSet]
}
