// SPDX-License-Identifier: Apache-2.0

package status

import (
	"net/netip"
	"time"

	"wangell.loutres.me/api/v1alpha1"
)

// Pressure describes resources of gates that are scarce, or were in the last minute. The zero value means that none is.
type Pressure struct {
	// Reason is v1alpha1.EventWakesLimited or v1alpha1.EventTableAlmostFull.
	Reason  v1alpha1.EventReason `json:"reason"`
	Message string               `json:"message"`
}

// Gate is the state of the gate of a node.
type Gate struct {
	Node string `json:"node"`
	// Silent is set if the node's daemon has not answered in time. The rest is empty then.
	Silent bool `json:"silent,omitempty"`
	// Parked is the number of connection requests that wait for a pod now.
	Parked uint64 `json:"parked"`
	// Tables are how full its tables are.
	Tables []GateTable `json:"tables"`
	// Counters count special packets, by kind.
	Counters map[string]uint64 `json:"counters,omitempty"`
	// Interfaces are its external interfaces with their XDP mode.
	Interfaces map[string]string `json:"interfaces,omitempty"`
}

// GateTable is how full a table of a gate is, or the largest share of one.
type GateTable struct {
	Name string `json:"name"`
	Used uint64 `json:"used"`
	Size uint64 `json:"size"`
}

// Connections is who is connected to what.
type Connections struct {
	// Most are the pairs of a client and a service with the most connections, most first, at most wire.MaxConnected.
	Most []ConnectionsOf `json:"most"`
	// Others is the number of connections of all other pairs.
	Others uint64 `json:"others"`
	// Silent are the nodes whose daemon has not answered in time.
	Silent []string `json:"silent,omitempty"`
}

// ConnectionsOf is the number of open connections of a client to a service.
type ConnectionsOf struct {
	Client  netip.Addr `json:"client"`
	Service string     `json:"service"` // namespace/name
	Open    uint64     `json:"open"`
}

// PodUsage is the resource usage of a container of a pod. Counters start with the container.
type PodUsage struct {
	Service v1alpha1.Key `json:"service"`
	Pod     string       `json:"pod"`
	// Container is the name of the container, and Restarts how often it was started again in its pod.
	Container string `json:"container"`
	Restarts  int    `json:"restarts"`
	// CPUSeconds is the CPU time on all cores.
	CPUSeconds float64 `json:"cpuSeconds"`
	// MemoryBytes is the working set: memory that cannot be reclaimed without hurting it. MemoryLimitBytes is 0 if
	// there is no limit.
	MemoryBytes      uint64 `json:"memoryBytes"`
	MemoryLimitBytes uint64 `json:"memoryLimitBytes,omitempty"`
	// Periods is the number of periods in which it ran under a CPU limit, and Throttled the number of those in which
	// it used up the limit and paused. ThrottledSeconds is how long its tasks paused, together. All are 0 without a
	// limit.
	Periods          uint64  `json:"periods"`
	Throttled        uint64  `json:"throttled"`
	ThrottledSeconds float64 `json:"throttledSeconds"`
	// At is the time of the measurement.
	At time.Time `json:"at"`
}
