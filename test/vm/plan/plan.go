// SPDX-License-Identifier: Apache-2.0

// Package plan defines the data that the runner of test/vm and the program in the VM exchange.
package plan

// Where the program in the VM finds its plan.
const (
	Dir  = "/payload"  // where the payload disk is mounted
	File = "plan.json" // the Plan, in Dir
)

// Plan lists the checks that a VM runs before it powers off.
type Plan struct {
	Checks []Check `json:"checks"`
}

// Check is a command; it passes if it exits with status 0.
type Check struct {
	Name    string   `json:"name"`
	Dir     string   `json:"dir"` // its working folder below Dir
	Args    []string `json:"args"`
	Seconds int      `json:"seconds"` // its limit
}

// State is the state that an Event reports.
type State string

// The states of a VM and its checks.
const (
	Booted  State = "booted"
	Running State = "running"
	Passed  State = "passed"
	Failed  State = "failed"
	Done    State = "done" // the last event
)

// Event is one line of JSON on the VM's serial port.
type Event struct {
	Check   string  `json:"check,omitempty"`
	State   State   `json:"state"`
	Seconds float64 `json:"seconds,omitempty"` // since the kernel started, or how long the check took
	Why     string  `json:"why,omitempty"`     // of Failed
	Output  string  `json:"output,omitempty"`  // of the check, stdout and stderr

	// Of Booted:
	Kernel   string            `json:"kernel,omitempty"`
	Cgroups  string            `json:"cgroups,omitempty"`  // v1 or v2
	Versions map[string]string `json:"versions,omitempty"` // of programs
}
