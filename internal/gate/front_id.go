// SPDX-License-Identifier: Apache-2.0

package gate

import "math"

// FrontID and OtherFrontID are the IDs of a service's fronts: proxies on this node, each with a network namespace of
// its own, that choose a pod for each request. One gets new clients, and the other one, its predecessor or successor,
// keeps the clients that it has. They are added and removed like pods with these IDs, which no other pod has.
const (
	FrontID      = math.MaxUint64
	OtherFrontID = FrontID - 1
)

// IsFront reports whether an ID is that of a front.
func IsFront(id uint64) bool { return id >= OtherFrontID }
