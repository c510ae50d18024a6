// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	discoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"

	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/kube/kubewatch"
	"wangell.loutres.me/internal/node"
)

// clusterFlags names the objects that a daemon follows in a cluster.
type clusterFlags struct{ lease, daemonSet, fronts, kubeconfig string }

func (f *clusterFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.lease, "lease", "",
		"cluster: NAMESPACE/NAME of the Lease of the leading controller, instead of --server")
	flags.StringVar(&f.daemonSet, "daemonset", "",
		"cluster: NAMESPACE/NAME of the DaemonSet that runs this daemon; if it is deleted, act as with --clean")
	flags.StringVar(&f.fronts, "envoy-service", "",
		"cluster: NAMESPACE/NAME of the Service that selects the Envoys of all nodes, with --envoy-socket")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "",
		"cluster: kubeconfig file for the API server (default: the pod's service account)")
}

// follow sets Follow, Enrol, Fronts and Clean of c: the daemon follows the holder of the Lease, whose address is kept
// in the file cache, gets its key from it if tokenFile is set, follows the addresses of the Envoys of all nodes, and
// removes the gate at its end if clean is set or the DaemonSet is being deleted. The returned function waits for the
// goroutines that follow started; they run until ctx ends.
func (f *clusterFlags) follow(
	ctx context.Context, cmd *cobra.Command, c *node.Config, clean bool, tokenFile, cache string,
) (wait func(), err error) {
	namespace, name, ok := namespaced(f.lease)
	if !ok {
		return nil, usage(cmd, "--lease %q: want NAMESPACE/NAME", f.lease)
	}
	setNamespace, setName, ok := namespaced(f.daemonSet)
	if f.daemonSet != "" && !ok {
		return nil, usage(cmd, "--daemonset %q: want NAMESPACE/NAME", f.daemonSet)
	}
	frontNamespace, frontName, ok := namespaced(f.fronts)
	if f.fronts != "" && !ok {
		return nil, usage(cmd, "--envoy-service %q: want NAMESPACE/NAME", f.fronts)
	}
	api, err := kubewatch.RESTConfig(f.kubeconfig)
	if err != nil {
		return nil, err
	}
	leases, err := coordinationv1.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	leader := &kubewatch.Leader{Leases: leases.Leases(namespace), Name: name, Cache: cache, Log: c.Log}
	c.Follow = leader.Follow
	if tokenFile != "" {
		client := &enrolment.Client{Node: c.Node, TokenFile: tokenFile, Log: c.Log}
		client.Leader = func(ctx context.Context) (enrolment.Endpoint, error) {
			addr, fingerprint, err := leader.Endpoint(ctx)
			return enrolment.Endpoint{Address: addr, Fingerprint: fingerprint}, err
		}
		c.Enrol = client.Keys
	}
	if f.fronts != "" {
		discovery, err := discoveryv1.NewForConfig(api)
		if err != nil {
			return nil, err
		}
		fronts := &kubewatch.Endpoints{Slices: discovery.EndpointSlices(frontNamespace), Name: frontName, Log: c.Log}
		c.Fronts = fronts.Follow
	}
	if f.daemonSet == "" {
		return func() {}, nil
	}
	apps, err := appsv1.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	set := &kubewatch.DaemonSet{DaemonSets: apps.DaemonSets(setNamespace), Name: setName, Log: c.Log}
	c.Clean = func() bool { return clean || set.Deleted(context.WithoutCancel(ctx)) }
	var group sync.WaitGroup
	group.Go(func() { set.Follow(ctx) })
	return group.Wait, nil
}

// namespaced splits NAMESPACE/NAME.
func namespaced(text string) (namespace, name string, ok bool) {
	namespace, name, ok = strings.Cut(text, "/")
	return namespace, name, ok && namespace != "" && name != "" && !strings.Contains(name, "/")
}
