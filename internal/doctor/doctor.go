// SPDX-License-Identifier: Apache-2.0

// Package doctor looks whether a machine can run Wangell, and says in one line a check what is
// missing, what it is for and what to do. It changes nothing on the machine: what must be tried is
// tried in a network namespace that ends with the try.
package doctor

import (
	"context"
	"time"
)

// State is the outcome of a check.
type State string

// The outcomes.
const (
	OK      State = "ok"
	Warn    State = "warn"    // works, with the restriction that the check names
	Missing State = "missing" // does not work
	Skipped State = "skipped" // could not be looked at; Found says why
)

// Group is what a check belongs to, for the reader.
type Group string

// The groups, in the order in which they are printed.
const (
	Rights   Group = "rights"
	Kernel   Group = "kernel"
	Gate     Group = "gate"
	Runtime  Group = "containers"
	Network  Group = "network"
	Building Group = "building"
)

// Check is one thing looked at.
type Check struct {
	Name  string `json:"name"`
	Group Group  `json:"group"`
	State State  `json:"state"`
	// Required: wangell up cannot run without it.
	Required bool `json:"required"`
	// For says what Wangell needs it for.
	For string `json:"for"`
	// Found is what the machine has, or the error of the try.
	Found string `json:"found,omitempty"`
	// Do says what to do about it; empty when there is nothing to do.
	Do string `json:"do,omitempty"`
}

// Bad tells whether the check stops wangell up.
func (c Check) Bad() bool { return c.Required && (c.State == Missing || c.State == Skipped) }

// Options choose what is looked at.
type Options struct {
	// ContainerdAddress is the socket that is asked whether a containerd answers.
	ContainerdAddress string
	// RequiredOnly leaves out what wangell up can do without.
	RequiredOnly bool
}

// DefaultContainerdAddress is where a distribution's containerd listens.
const DefaultContainerdAddress = "/run/containerd/containerd.sock"

// checkTimeout bounds what asks another program.
const checkTimeout = 3 * time.Second

// Run makes all checks and returns them in the order of their groups.
func Run(ctx context.Context, opt Options) []Check {
	if opt.ContainerdAddress == "" {
		opt.ContainerdAddress = DefaultContainerdAddress
	}
	var all []Check
	all = append(all, rights("/proc/self/status")...)
	all = append(all, kernel()...)
	all = append(all, gate()...)
	all = append(all, containers(ctx, opt.ContainerdAddress)...)
	if opt.RequiredOnly {
		return keep(all, func(c Check) bool { return c.Required })
	}
	all = append(all, network("/proc/sys")...)
	all = append(all, building(ctx)...)
	return all
}

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

// ok, warn and missing fill in the outcome of a check.
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

// tried fills in the outcome of a try: ok with found, or missing with the error.
func (c Check) tried(found string, err error) Check {
	if err != nil {
		return c.missing(err.Error())
	}
	return c.ok(found)
}
