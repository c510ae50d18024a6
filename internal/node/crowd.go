// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

// crowdWait is the default of Config.CrowdWait. Pods that start together mostly listen within this time of each other,
// and it is well below the one second after which a client's TCP retransmits its SYN (RFC 6298).
const crowdWait = 250 * time.Millisecond

// crowd divides the SYNs parked at a service among the pods that its wake started. Time is a parameter.
type crowd struct {
	pods  int           // number of pods that share the SYNs; below 2, the first to serve gets all of them
	until monotime.Time // until when SYNs are kept for other pods; zero if none are kept
	given uint32        // SYNs given to pods as their shares so far
	first uint64        // ID of the pod that served first
}

// share returns the number of parked SYNs that a pod gets as it begins to serve, and whether the SYNs left after that
// are released to all serving pods at once. serving is the number of serving pods, including this one. SYNs are kept
// until now+wait at the longest.
func (c *crowd) share(
	pod uint64, parked uint32, serving int, now monotime.Time, wait time.Duration,
) (n uint32, rest bool) {
	if c.until == 0 && serving == 1 {
		c.given, c.first = 0, pod
	} else if now >= c.until {
		c.until = 0
		return 0, true
	}
	// Some may have been sent on otherwise, and the number of pods may have changed: what is left is divided among
	// those that have no share yet.
	left := max(c.pods-serving, 0) + 1
	n = min(part(c.given+parked, c.pods), part(parked, left))
	c.given += n
	if n == parked || serving >= c.pods {
		c.until = 0
		return n, true
	}
	if c.until == 0 {
		c.until = now.Add(wait)
	}
	return n, false
}

// part returns an n-th of a number of SYNs, rounded up.
func part(syns uint32, n int) uint32 { return uint32((uint64(syns) + uint64(n) - 1) / uint64(n)) }

// over reports whether kept SYNs should be released now: because all pods serve, or because the time is up.
func (c *crowd) over(serving int, now monotime.Time) bool {
	return c.until != 0 && (now >= c.until || serving > 0 && serving >= c.pods)
}

// servingIn returns the number of serving pods in a message.
func servingIn(m *wire.Backends) int {
	n := 0
	for _, b := range m.Pods {
		if b.State == wire.PodServing {
			n++
		}
	}
	return n
}
