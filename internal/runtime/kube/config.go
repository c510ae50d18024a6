// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"wangell.loutres.me/api/v1alpha1"
)

// Config configures a Runtime.
type Config struct {
	// Client reaches the API server; see NewClient. The Runtime does not close it.
	Client kubernetes.Interface
	// Deployments is an informer of the Deployments with the label v1alpha1.LabelService, shared with others so that
	// they are listed, watched and cached once. It may drop managed fields only. Nil: the Runtime has its own.
	Deployments Informer
	// Namespace is the only one that is watched; empty for all.
	Namespace string
	// Log may be nil.
	Log *slog.Logger
	// WithoutDaemons: no daemon reports pods (in tests). Everything is taken from the API, which is late, and lacks
	// what only a node has: a pod's network namespace, and when it got its address.
	WithoutDaemons bool
	// ThroughDeployment: create no pod here; all come from the Deployment and its ReplicaSets. Wakes are slower, and each
	// makes fewer requests.
	ThroughDeployment bool
	// LogsInMessages: the Exit of a process that ended by itself has the end of its log, which then reaches the status of
	// its service and Events: who may read those need not be allowed to read logs.
	LogsInMessages bool
	// Trouble reports why a wanted pod does not start (it fits on no node, for example) although it still may, and later,
	// with the zero value, that nothing holds it up. It must be quick and not call the Runtime. It may be nil.
	Trouble func(v1alpha1.Key, Trouble)
	// Reserved reports that the Reservations of a service have changed visibly. It must be quick and not call the
	// Runtime. It may be nil.
	Reserved func(v1alpha1.Key)
}

// Trouble is why a pod does not start.
type Trouble struct {
	// Reason is for users; empty if there is none.
	Reason string
	// Unschedulable: the pod fits on no node.
	Unschedulable bool
	// Lost: a single pod on a node without a daemon blocks others.
	Lost bool
}

// Informer delivers the objects of one kind and their changes. The informers of client-go and controller-runtime
// implement it.
type Informer interface {
	AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
	RemoveEventHandler(cache.ResourceEventHandlerRegistration) error
}

// NewClient returns a client for a Runtime: it uses protobuf and has no rate limit of its own. Its watches keep open
// the one HTTP/2 connection that the requests of a wake use.
func NewClient(config *rest.Config) (kubernetes.Interface, error) {
	c := rest.CopyConfig(config)
	c.QPS, c.RateLimiter = -1, nil
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("client of the API server %s: %w", config.Host, err)
	}
	return client, nil
}
