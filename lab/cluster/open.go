// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/test/testutil/clusterfile"
	"wangell.loutres.me/test/testutil/netlab"
)

// Open connects to the cluster of a cluster.json and makes the namespace. The caller must call Close. Kinds are
// resources that create pods: Close deletes those in the namespace first.
func Open(ctx context.Context, file string, kinds ...schema.GroupVersionResource) (_ *Cluster, err error) {
	c := &Cluster{kinds: append(kinds, v1alpha1.Resource), killed: map[types.UID]time.Time{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open cluster %s: %w", file, err), c.runUndo())
		}
	}()
	if c.File, err = clusterfile.Load(file); err != nil {
		return nil, err
	}
	if c.Client, err = netlab.Existing(c.File.Client.NetnsPath); err != nil {
		return nil, fmt.Errorf("is it up? %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.File.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // no client-side rate limit
	config.WarningHandler = rest.NoWarnings{}
	if c.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if c.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	if c.Nodes, err = dialRuntimes(c.File.Nodes); err != nil {
		return nil, err
	}
	c.OnClose(c.Nodes.close)
	for _, n := range c.File.Nodes {
		if err := c.routePods(n); err != nil {
			return nil, err
		}
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "wangell-lab-"}}
	namespace, err = c.Kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create a namespace: %w", err)
	}
	c.Namespace = namespace.Name
	c.OnClose(c.removeAll)
	return c, nil
}

// routePods gives the client a route to the pods of a node until Close, if it has none. A host outside of a cluster has
// none by itself, but the floor is a pod that is asked directly.
func (c *Cluster) routePods(n clusterfile.Node) error {
	_, pods, err := net.ParseCIDR(n.PodCIDR)
	if err != nil {
		return fmt.Errorf("pod addresses of %s: %w", n.Name, err)
	}
	route := &netlink.Route{Dst: pods, Gw: net.ParseIP(n.IP)}
	err = c.onClientLink(func(l netlink.Link) error {
		route.LinkIndex = l.Attrs().Index
		return netlink.RouteAdd(route)
	})
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("add the client's route to the pods of %s: %w", n.Name, err)
	}
	c.OnClose(func() error {
		err := c.onClientLink(func(netlink.Link) error { return netlink.RouteDel(route) })
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("delete the client's route to %s: %w", pods, err)
		}
		return nil
	})
	return nil
}

// onClientLink calls f with the client's link, in the client's namespace.
func (c *Cluster) onClientLink(f func(netlink.Link) error) error {
	return c.Client.Do(func() error {
		l, err := netlink.LinkByName(c.File.Client.Interface)
		if err != nil {
			return fmt.Errorf("the client's device %s: %w", c.File.Client.Interface, err)
		}
		return f(l)
	})
}

// removeAll deletes everything in the namespace, and then the namespace. Kinds and pods go first: the controller of
// namespaces would wait for half of the pods' grace period, which is minutes.
func (c *Cluster) removeAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), ZeroTimeout)
	defer cancel()
	for _, r := range append(c.kinds, corev1.SchemeGroupVersion.WithResource("pods")) {
		objects := c.Dynamic.Resource(r).Namespace(c.Namespace)
		err := objects.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) { // not found: the cluster does not have the kind
			return fmt.Errorf("delete %s: %w", r.Resource, err)
		}
	}
	if err := c.UntilZero(ctx); err != nil {
		return err
	}
	if err := c.Kube.CoreV1().Namespaces().Delete(ctx, c.Namespace, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete namespace %s: %w", c.Namespace, err)
	}
	return Until(ctx, ZeroTimeout, func() error {
		_, err := c.Kube.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(fmt.Errorf("namespace %s still exists", c.Namespace), err)
	})
}
