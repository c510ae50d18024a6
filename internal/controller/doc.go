// SPDX-License-Identifier: Apache-2.0

// Package controller keeps services: it wakes them when a daemon asks, puts them to sleep, and reports what happens.
// The decisions are those of package lifecycle. Pods are run by a runtime.Runtime, and daemons are reached through
// package wire. No package here imports internal/gate, internal/node/envoy, internal/machine or internal/show.
//
// One goroutine, the loop, owns all services and runs all their state machines. It never waits: slow work (starting,
// stopping, fetching images) has goroutines of its own, which post the outcome to the loop. A sleeping service costs
// only memory.
package controller
