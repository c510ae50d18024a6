// SPDX-License-Identifier: Apache-2.0

// Package doctor checks whether a machine can run Wangell. Each check says why Wangell needs something and what to do
// if it is missing. The machine is not changed: attempts are made in a temporary network namespace.
package doctor

import "context"

// Options selects the checks.
type Options struct {
	// ContainerdAddress is the socket on which to look for a containerd.
	ContainerdAddress string
	// StateDir is the state folder of the instance. Empty: it is not checked.
	StateDir string
	// Snapshotter is the snapshotter of containerd to check for. Empty: it is not checked.
	Snapshotter string
	// RequiredOnly leaves out the checks that cannot stop wangell up.
	RequiredOnly bool
}

// DefaultContainerdAddress is the socket of a distribution's containerd.
const DefaultContainerdAddress = "/run/containerd/containerd.sock"

// Run returns the result of all checks, in the order of their groups.
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
	all = append(all, images(ctx, opt.ContainerdAddress)...)
	if opt.Snapshotter != "" {
		all = append(all, snapshotter(ctx, opt.ContainerdAddress, opt.Snapshotter)...)
	}
	if opt.StateDir != "" {
		all = append(all, stores(opt.StateDir, opt.ContainerdAddress, opt.Snapshotter)...)
	}
	all = append(all, network("/proc/sys")...)
	all = append(all, forwarding())
	all = append(all, building(ctx)...)
	return all
}
