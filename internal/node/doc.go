// SPDX-License-Identifier: Apache-2.0

// Package node implements the daemon of a node. It manages the node's gate, keeps the table of services, reports to the
// controller what the gate and the container runtime observe, and detects when pods listen. No package here imports
// internal/controller, internal/machine or internal/show.
//
// No traffic passes through the daemon. When it stops or crashes, the gate keeps running, and the next daemon adopts
// it.
package node
