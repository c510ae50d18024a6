// SPDX-License-Identifier: Apache-2.0

// Package envoy configures Envoy, the proxy that chooses a pod for each request of a service with balancing.level:
// Request. Resources and Bootstrap are pure; Server gives the resources to the Envoy of this node over xDS. Whoever
// starts and ends the process is elsewhere.
//
// What a client's request passes: a listener of the service, which is the service's front in the gate; then the cluster
// of the service's pods, or if it has none, the cluster of the service address itself. There the gate parks Envoy's
// connection and wakes the service, as for any client.
package envoy
