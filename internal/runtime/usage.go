// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"time"

	"wangell.loutres.me/internal/monotime"
)

// Usage is what a pod uses of its machine, all its containers together.
type Usage struct {
	// CPU is the time of all cores together since the pod's start: it only grows.
	CPU time.Duration
	// Memory is the working set in bytes: what cannot be taken from the pod without hurting it.
	Memory uint64
	// At is when it was so.
	At monotime.Time
}

// Meter is what a Runtime also is that knows what its pods use. That of a cluster is not: the daemons of the pods' nodes
// tell.
type Meter interface {
	// Usage tells what a pod uses; ErrNotFound if there is no such pod. It takes well below a millisecond.
	Usage(ctx context.Context, podID string) (Usage, error)
}
