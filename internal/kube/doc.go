// SPDX-License-Identifier: Apache-2.0

// Package kube holds what only a Kubernetes cluster needs: the operator for WangellService objects, the keys of the
// daemons, the API for users with their own rights, and the clients of both. Its packages never import internal/machine
// or internal/gate.
//
// The runtime that creates pods on a cluster is internal/runtime/kube, because it fulfils the same contract as the one
// for containerd.
package kube
