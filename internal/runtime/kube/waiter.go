// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

// waiter is a Start under way.
type waiter struct {
	pod    *pod   // nil until a pod is assigned
	heldUp string // why its pod does not start, although it still may
	steps  chan step
	err    chan error
}

// step is what happens to the pod of a Start.
type step struct {
	phase  runtime.Phase
	at     monotime.Time
	pod    runtime.Pod
	exited bool // its process ended
}

func newWaiter() *waiter {
	// There are fewer kinds of steps than this channel holds; repeated ones may be dropped.
	return &waiter{steps: make(chan step, 16), err: make(chan error, 1)}
}

// report never blocks.
func (w *waiter) report(s step) {
	select {
	case w.steps <- s:
	default:
	}
}

// fail never blocks. The first error counts.
func (w *waiter) fail(err error) {
	select {
	case w.err <- err:
	default:
	}
}
