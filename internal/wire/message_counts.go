// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"

	"wangell.loutres.me/internal/base/monotime"
)

// PodStats holds the counters of one pod since its start.
type PodStats struct {
	Service    netip.AddrPort
	PodID      uint64
	OpenFlows  uint32
	NewFlows   uint64
	BytesIn    uint64 // client to pod, sum of the IP total lengths
	BytesOut   uint64 // pod to client, sum of the IP total lengths
	LastPacket monotime.Time
}

// Stats carries the counters of pods that changed.
type Stats struct{ Pods []PodStats } // at most MaxPodStats per message

// Idle reports that a service had no packet for its idle timeout.
type Idle struct {
	Service    netip.AddrPort
	LastPacket monotime.Time
}

// Quiet answers a Backends message that drains a pod, once the gate gives the pod no new flow.
type Quiet struct {
	Service    netip.AddrPort
	PodID      uint64
	Generation uint64 // of the Backends message that it answers
	LastPacket monotime.Time
	OpenFlows  uint32
}

// PodUsage is the CPU time and memory that all containers of a pod use together.
type PodUsage struct {
	Service netip.AddrPort
	PodID   uint64
	// CPU is the time of all cores since the pod's start, in nanoseconds.
	CPU uint64
	// Memory is the working set in bytes.
	Memory uint64
	// At is when the values were measured.
	At monotime.Time
}

// Usage carries the usage of pods whose service has FlagUsage.
type Usage struct{ Pods []PodUsage } // at most MaxPodUsage per message

// Classes is the number of classes of answers: 1 to 5 are those of HTTP status codes, 0 is for requests that got none.
const Classes = 6

// PodAnswers are the requests that came through a node to a pod, since the node's daemon started.
type PodAnswers struct {
	Service netip.AddrPort
	// PodID is 0 for requests of the service that have no pod: they wait, or no pod has answered them.
	PodID uint64
	// Open is the number of requests that are not answered yet.
	Open uint32
	// Started is the number of requests that the pod was given.
	Started uint64
	// Answered is the number of requests that have ended, by class.
	Answered [Classes]uint64
}

// Answers carries the requests of pods whose service has FlagRequests, if they changed.
type Answers struct {
	At   monotime.Time // when they were counted
	Pods []PodAnswers  // at most MaxPodAnswers
}

// PodLoad is the number of a pod's open flows, from all edge nodes together.
type PodLoad struct {
	Service   netip.AddrPort
	PodID     uint64
	OpenFlows uint32
}

// Loads carries the open flows of pods from their home node to the controller, which forwards them to the other nodes
// for load balancing.
type Loads struct{ Pods []PodLoad } // at most MaxPodLoads per message

// Denied reports that the rules of a service refused a client, at most once a minute for each service and daemon.
type Denied struct {
	Service netip.AddrPort
	// Total is the number of SYNs that this daemon's gate has refused since it got the service.
	Total uint64
	// Source is the client.
	Source netip.Addr
}

// Type returns TypeDenied.
func (*Denied) Type() Type { return TypeDenied }

// Type returns TypeStats.
func (*Stats) Type() Type { return TypeStats }

// Type returns TypeIdle.
func (*Idle) Type() Type { return TypeIdle }

// Type returns TypeQuiet.
func (*Quiet) Type() Type { return TypeQuiet }

// Type returns TypeAnswers.
func (*Answers) Type() Type { return TypeAnswers }

// Type returns TypeUsage.
func (*Usage) Type() Type { return TypeUsage }

// Type returns TypeLoads.
func (*Loads) Type() Type { return TypeLoads }
