// SPDX-License-Identifier: Apache-2.0

package fleet

// Samples are the measurements of one run.
type Samples struct {
	Daemons  int `json:"daemons"`
	Services int `json:"services"`
	// Rate is the number of wakes per second that were asked for.
	Rate int `json:"wakes_per_s"`
	// Join begins when all daemons start; Leader begins when the new controller has the services.
	Join   Gathering `json:"join"`
	Leader Gathering `json:"leader"`
	// Idle is measured between Join and Wakes.
	Idle  Cost  `json:"idle"`
	Wakes Wakes `json:"wakes"`
}

// Gathering holds the times, in milliseconds, after which each daemon had something. Lists are sorted, with one
// element per daemon.
type Gathering struct {
	Connected []float64 `json:"connected_ms"`
	// Table: the daemon has all services. Nodes: it has all nodes. Pods: it has the serving pods of all warm services.
	Table []float64 `json:"table_ms"`
	Nodes []float64 `json:"nodes_ms"`
	Pods  []float64 `json:"pods_ms,omitempty"`
	Cost  Cost      `json:"cost"`
}

// Wakes are the wakes of services that slept.
type Wakes struct {
	// Sent is how long it took to ask for all of them, in seconds.
	Sent float64 `json:"sent_s"`
	// Asker holds the times from a wake until the daemon that asked has the serving pod, All those until every daemon
	// has it, in milliseconds and in the order of the wakes.
	Asker []float64 `json:"asker_ms"`
	All   []float64 `json:"all_ms"`
	Cost  Cost      `json:"cost"`
}

// Cost is what a part of the experiment costs.
type Cost struct {
	// Seconds is its duration.
	Seconds float64 `json:"seconds"`
	// Controller and Daemons are processor times in seconds; Daemons is that of all daemons together, with the
	// measurement itself.
	Controller float64 `json:"controller_cpu_s"`
	Daemons    float64 `json:"daemons_cpu_s"`
	// Resident is the resident memory of the controller at its end, in MiB.
	Resident float64 `json:"controller_rss_mib"`
	// Sent and Received are bytes of UDP payload, the mean over the daemons.
	Sent     float64 `json:"node_sent_bytes"`
	Received float64 `json:"node_received_bytes"`
}
