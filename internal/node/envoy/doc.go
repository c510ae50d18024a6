// SPDX-License-Identifier: Apache-2.0

// Package envoy configures Envoy, the proxy that chooses a pod for each request of a service with balancing.level:
// Request. Resources and Bootstrap are pure; Server gives the resources to the Envoy of this node over xDS. The
// process is started and ended elsewhere.
//
// A client's request passes a listener of the service, which is the service's front in the gate, and then the cluster
// of the service's pods or, if there are none, the cluster of the service address itself. There the gate parks
// Envoy's connection and wakes the service, as for any client.
package envoy
