// SPDX-License-Identifier: Apache-2.0

package enrolment

import (
	"net/netip"
	"time"

	"wangell.loutres.me/internal/base/quota"
)

// Limits of the load that strangers can cause. Each node asks once when its daemon starts, and later only if the key
// has changed.
const (
	maxConnections = 512  // open at a time
	maxOfSource    = 4    // of one address
	sources        = 8192 // buckets for addresses
)

// requests limits the requests of one address.
var requests = quota.Rate{Burst: 10, Pause: time.Second}

// limits are those of a server.
type limits struct {
	connections *quota.Slots[netip.Addr]
	requests    *quota.Sources
}

func newLimits() limits {
	return limits{
		connections: quota.NewSlots[netip.Addr](maxOfSource, maxConnections),
		requests:    quota.NewSources(sources, requests, quota.Rate{}),
	}
}
