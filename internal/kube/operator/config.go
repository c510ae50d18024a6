// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"log/slog"
	"time"

	"k8s.io/client-go/rest"

	"wangell.loutres.me/internal/wire"
)

// Name is an object's namespace and name.
type Name struct{ Namespace, Name string }

// String returns "namespace/name"; nothing for the zero value.
func (n Name) String() string {
	if n == (Name{}) {
		return ""
	}
	return n.Namespace + "/" + n.Name
}

// Config configures a process of the operator.
type Config struct {
	// Rest reaches the API server.
	Rest *rest.Config
	// Key is the master key of the wire.
	Key wire.Key
	// DaemonAccount is the service account of the daemons, which get the keys of their nodes at the TCP port of
	// WireAddress. Without it, daemons must be configured with their keys.
	DaemonAccount Name
	// MaxServices is how many services the daemons' gates have room for.
	MaxServices int
	// Pools are the service addresses; PoolsFrom adds more.
	Pools Pools
	// PoolsFrom is a ConfigMap with pools under the key "addresses", in the format of ParsePoolsYAML, and rules
	// for them under the key "addressRules", in the format of ParseAddressRules. Optional.
	PoolsFrom Name
	// ReleasedIn is a ConfigMap in which a leader keeps the addresses in quarantine for the next one. Without it, their
	// quarantine ends with the leader.
	ReleasedIn Name
	// NodePolicy is an existing NetworkPolicy of which the leader keeps the ingress rules: nodes alone reach the ports for
	// daemons. Optional.
	NodePolicy Name
	// WireAddress is the UDP address for daemons, host:port.
	WireAddress string
	// Identity is the holder of the Lease while this process leads: "POD/IP:PORT". Daemons connect to that address.
	Identity string
	// Lease is held by the leader.
	Lease Name
	// LeaseDuration is the time without a renewal after which another process may lead. The leader gives up after
	// RenewDeadline. The Lease is renewed, or tried, every RetryPeriod.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// HandOver is how long a former leader keeps reporting pod changes to daemons, unless all of them switch to the
	// next leader before that.
	HandOver time.Duration
	// Deployment is the one that runs the controllers. A former leader waits for no other one if it has no replicas, or is
	// gone. The zero value: always wait.
	Deployment Name
	// Namespace is the only one whose services are managed; empty for all.
	Namespace string
	// StartThroughDeployment leaves it to the Deployment to create the pods of a wake; see kube.Config.
	StartThroughDeployment bool
	// LogsInMessages puts the end of the log of a program that crashes into the status of its service and into Events;
	// see kube.Config.
	LogsInMessages bool
	// NodePorts gives the Services of Wangell's own class a node port, so that clients outside reach them at any
	// node.
	NodePorts bool
	// Lazy is set if the RuntimeClass v1alpha1.LazyRuntime exists.
	Lazy bool
	// Requests is set if the nodes run Envoy. Otherwise services with balancing.level: Request are refused.
	Requests bool
	// Fronts is the headless Service of the nodes' Envoys. With it, the conditions of services tell which nodes have none.
	// Optional.
	Fronts Name
	// MetricsAddress and HealthAddress serve HTTP, host:port; an empty one serves nothing.
	MetricsAddress, HealthAddress string
	// APIAddress serves the API to people over TLS, host:port; an empty one serves nothing. All controllers have the same
	// port.
	APIAddress string
	// Log may be nil.
	Log *slog.Logger
}

// ErrLostLease is returned by Run when another process has the Lease.
var ErrLostLease = errors.New("the lease was lost: another controller leads")
