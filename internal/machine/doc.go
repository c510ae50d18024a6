// SPDX-License-Identifier: Apache-2.0

// Package machine holds what only a single machine needs: `wangell up` and its children, manifest files, Compose files,
// DNS for pods, their way to other networks, persistent volumes and compressed swap. Its packages never import
// internal/kube.
//
// The runtime that runs pods by containerd is internal/runtime/containerd.
package machine
