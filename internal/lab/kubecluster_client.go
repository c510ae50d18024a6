// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wangell.loutres.me/internal/testutil/netlab"
)

// loadHost is where a load generator runs: a namespace, and the source address of its connections.
type loadHost struct {
	ns   *netlab.Namespace
	addr string
}

// vantage is where clients are.
type vantage struct {
	name    string
	hosts   []loadHost
	outside bool
}

// Vantages.
const (
	// VantagePods is pods of the first node: kube-proxy leaves their addresses as they are.
	VantagePods = "pods"
	// VantageLAN is a host on the nodes' LAN: kube-proxy masquerades, so that replies come back by the same node.
	VantageLAN = "lan"
)

// address is where clients of a vantage connect to for a target.
func (v *vantage) address(t *target) string {
	if v.outside {
		return t.outside
	}
	return t.inside
}

// podClients starts client pods on the first node; load generators run in their network namespaces.
func (c *proxyCluster) podClients(ctx context.Context, n int) (*vantage, error) {
	no := false
	for i := range n {
		_, err := c.kube.CoreV1().Pods(c.namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("client-%d", i), Labels: map[string]string{"load": "client"}},
			Spec: corev1.PodSpec{NodeName: c.file.Nodes[0].Name, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
				Containers: []corev1.Container{{Name: "main", Image: c.image}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("create a client pod: %w", err)
		}
	}
	v := &vantage{name: VantagePods}
	return v, until(ctx, readyTimeout, func() error {
		pods, err := c.podsWith(ctx, "load=client")
		if err != nil {
			return err
		}
		if good, _ := readyPods(pods); good != n {
			return fmt.Errorf("%d of %d client pods are ready", good, n)
		}
		slices.SortFunc(pods, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
		v.hosts = nil
		for i := range pods {
			ns, err := podNamespace(&pods[i])
			if err != nil {
				return err
			}
			v.hosts = append(v.hosts, loadHost{ns, pods[i].Status.PodIP})
		}
		return nil
	})
}

// lanClients gives the cluster's client host further addresses, which it has until the cluster is closed.
func (c *proxyCluster) lanClients(n int) (*vantage, error) {
	v := &vantage{name: VantageLAN, outside: true}
	prefix, err := netip.ParsePrefix(c.places.LAN.Subnet)
	if err != nil {
		return nil, fmt.Errorf("the cluster's LAN: %w", err)
	}
	for i := range n {
		addr := addressFromEnd(prefix, 10+i)
		v.hosts = append(v.hosts, loadHost{c.client, addr.String()})
		address := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}}
		if err := c.onClientLink(func(l netlink.Link) error { return netlink.AddrAdd(l, address) }); err != nil {
			return nil, fmt.Errorf("give the client the address %s: %w", addr, err)
		}
		c.onClose(func() error {
			return c.onClientLink(func(l netlink.Link) error { return netlink.AddrDel(l, address) })
		})
	}
	return v, nil
}

// routeClient gives the client host a route for a service address of kube-proxy to the first node, until the cluster is
// closed. A router that speaks BGP with a load balancer would do that.
func (c *proxyCluster) routeClient(addr netip.Addr) error {
	route := func(l netlink.Link) *netlink.Route {
		return &netlink.Route{LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}, Gw: net.ParseIP(c.file.Nodes[0].IP)}
	}
	if err := c.onClientLink(func(l netlink.Link) error { return netlink.RouteAdd(route(l)) }); err != nil {
		return fmt.Errorf("give the client a route to %s: %w", addr, err)
	}
	c.onClose(func() error {
		return c.onClientLink(func(l netlink.Link) error { return netlink.RouteDel(route(l)) })
	})
	return nil
}

func (c *proxyCluster) onClientLink(f func(netlink.Link) error) error {
	return c.client.Do(func() error {
		l, err := netlink.LinkByName(c.file.Client.Interface)
		if err != nil {
			return fmt.Errorf("the client's device %s: %w", c.file.Client.Interface, err)
		}
		return f(l)
	})
}

func intOrString(n int) intstr.IntOrString { return intstr.FromInt32(int32(n)) }
