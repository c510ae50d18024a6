// SPDX-License-Identifier: Apache-2.0

// Package runtime defines the interface of programs that run a service's containers. Package containerd implements it
// for one machine, package kube for a cluster. No package here imports internal/controller, internal/gate,
// internal/wire, internal/kube or internal/show.
package runtime
