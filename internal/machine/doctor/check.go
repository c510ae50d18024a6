// SPDX-License-Identifier: Apache-2.0

package doctor

import "time"

// State is the outcome of a check.
type State string

// Outcomes of a check.
const (
	OK      State = "ok"
	Warn    State = "warn"    // works, with a restriction that the check names
	Missing State = "missing" // does not work
	Skipped State = "skipped" // could not be checked; Found says why
)

// Group is the heading under which a check is printed.
type Group string

// Groups of checks, in the order in which they are printed.
const (
	Rights   Group = "rights"
	Kernel   Group = "kernel"
	Gate     Group = "gate"
	Runtime  Group = "containers"
	Images   Group = "images"
	Storage  Group = "storage"
	Network  Group = "network"
	Building Group = "building"
)

// Check is the result of one check.
type Check struct {
	Name  string `json:"name"`
	Group Group  `json:"group"`
	State State  `json:"state"`
	// Required is whether wangell up needs it.
	Required bool `json:"required"`
	// For is what Wangell needs it for.
	For string `json:"for"`
	// Found is what the machine has, or the error of an attempt to use it.
	Found string `json:"found,omitempty"`
	// Do is what to do about it; empty if there is nothing to do.
	Do string `json:"do,omitempty"`
}

// Bad reports whether the check stops wangell up.
func (c Check) Bad() bool { return c.Required && (c.State == Missing || c.State == Skipped) }

// checkTimeout bounds a call of another program. On a busy machine even containerd --version takes seconds.
const checkTimeout = 30 * time.Second

// Bad returns the checks that stop wangell up.
func Bad(checks []Check) []Check { return keep(checks, Check.Bad) }

func keep(checks []Check, want func(Check) bool) []Check {
	var kept []Check
	for _, c := range checks {
		if want(c) {
			kept = append(kept, c)
		}
	}
	return kept
}

// ok fills in the outcome of a check, like the methods below.
func (c Check) ok(found string) Check {
	c.State, c.Found, c.Do = OK, found, ""
	return c
}

func (c Check) warn(found string) Check {
	c.State, c.Found = Warn, found
	return c
}

func (c Check) missing(found string) Check {
	c.State, c.Found = Missing, found
	return c
}

func (c Check) skipped(why string) Check {
	c.State, c.Found = Skipped, why
	return c
}

// tried fills in the result of an attempt: ok with found, or missing with the error.
func (c Check) tried(found string, err error) Check {
	if err != nil {
		return c.missing(err.Error())
	}
	return c.ok(found)
}
