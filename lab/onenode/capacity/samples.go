// SPDX-License-Identifier: Apache-2.0

package capacity

// Sample is the cost of an instance with a number of sleeping services.
type Sample struct {
	Services int `json:"services"`
	// Start is how long `wangell up` took until every service could be woken, in seconds.
	Start float64 `json:"start_s"`
	// Daemon and Controller are the resources of the two processes.
	Daemon     Usage `json:"daemon"`
	Controller Usage `json:"controller"`
	// Cold is one cold request to the last service, connect() to first byte, in milliseconds.
	Cold float64 `json:"cold_ms"`
}

// Usage is what a process uses while all services sleep.
type Usage struct {
	// Resident is the resident memory in MiB; Anonymous is the part of it that is not backed by files.
	Resident  float64 `json:"resident_mib"`
	Anonymous float64 `json:"anonymous_mib"`
	// CPU is the use of one core in percent.
	CPU float64 `json:"cpu_percent"`
}
