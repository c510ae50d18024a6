// SPDX-License-Identifier: Apache-2.0

// Package kube runs services on Kubernetes: it is a runtime.Cluster. The pods of a service belong to a Deployment of
// the same name, which internal/kube/operator creates. Only this package writes its number of replicas, as one number
// in one request. The pods of a wake are created here and handed over to the Deployment later (see machine), because
// two controllers would otherwise stand between the decision to start a pod and its creation.
//
// A pod's life is reported twice: by the daemon of its node at once (ReportPod), and by the API up to a second later.
// The daemon's report counts, once the API has bound the pod to that daemon's node (unconfirmed.go): whoever has the
// key of a node could report any pod. A pod is used only after its node's daemon reports it: without a daemon its node
// has no gate that could serve it. Only the API reports that a pod fits on no node, that an image cannot be pulled, or
// that a pod is being deleted.
//
// start.go has a start from the call to its requests, stop.go and single.go the ends of pods. Pure functions of
// observations decide (machine, demand, lending, trouble); requests and podlogs talk to the API server; state and pod
// hold what is known; reports and pods take in what daemons and the API server say; maintain and reserve carry out
// what is due later.
package kube
