// SPDX-License-Identifier: Apache-2.0

// Package kube runs services on Kubernetes: it is a runtime.Cluster. The pods of a service belong to a Deployment of
// the same name, which internal/kube/operator creates. Only this package writes its number of replicas, as one number in one
// request. The pods of a wake are created here and handed over to the Deployment later (see machine), because two
// controllers would otherwise stand between the decision to start a pod and its creation.
//
// A pod's life is reported twice: by the daemon of its node at once (ReportPod), and by the API up to a second later.
// The daemon's report counts. A pod is used only after its node's daemon reports it: without a daemon its node has no
// gate that could serve it. Only the API reports that a pod fits on no node, that an image cannot be
// pulled, or that a pod is being deleted.
//
// The files depend on each other in one direction: pure functions of observations (machine, demand, lending,
// trouble), requests to the API server (requests, podlogs), the state of services and pods (state, pods), execution
// of decisions (drive, maintain, reserve), and on top the entry points (start, stop, nodes, pull, reports, logs,
// runtime).
package kube
