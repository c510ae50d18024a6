// SPDX-License-Identifier: Apache-2.0

package strangers

// Samples are the measurements of one run.
type Samples struct {
	Daemons int `json:"daemons"`
	// Parts are in the order in which they were measured.
	Parts []Part `json:"parts"`
	// Ended is the number of sessions that ended in all parts, Connected the number of daemons with a session at the end.
	Ended     int `json:"sessions_ended"`
	Connected int `json:"connected"`
}

// Part is a time in which services are woken.
type Part struct {
	// Flood: strangers sent datagrams meanwhile.
	Flood bool `json:"flood"`
	// Seconds is its length.
	Seconds float64 `json:"seconds"`
	// Sent is the number of strangers' datagrams. Read and Dropped are the datagrams, strangers' and others, that the
	// controller read and that found no room in a receive buffer.
	Sent    int `json:"sent"`
	Read    int `json:"read"`
	Dropped int `json:"dropped"`
	// Wakes are the times from a WAKE until the daemon that asked has the serving pod, in milliseconds and in the order
	// of the wakes. Failed is the number of those that it does not have in time.
	Wakes  []float64 `json:"wakes_ms"`
	Failed int       `json:"wakes_failed"`
	// Controller is the processor time of the controller in seconds.
	Controller float64 `json:"controller_cpu_s"`
}
