// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"sync"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// gracePeriod is the time that the processes of a pod have to end. It begins when the first of them has got its stop
// signal, which takes long while a thousand pods are being stopped. Without a length there is no signal but SIGKILL.
type gracePeriod struct {
	length time.Duration

	mu    sync.Mutex
	began monotime.Time // 0 until the first signal
}

// begin begins the period, unless that was done before, and returns what is left of it.
func (g *gracePeriod) begin(now monotime.Time) time.Duration {
	g.mu.Lock()
	if g.began == 0 {
		g.began = now
	}
	g.mu.Unlock()
	return g.left(now)
}

// left returns what is left of the period; 0 once it is over.
func (g *gracePeriod) left(now monotime.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.began == 0 {
		return g.length
	}
	return max(0, g.length-now.Sub(g.began))
}
