// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/lab/load"
)

// Vantage is a place of clients.
type Vantage struct {
	Name  string
	Hosts []load.Host
	// Outside is set if the clients are not in the cluster.
	Outside bool
}

// Names of vantages.
const (
	// VantagePods are pods of the first node.
	VantagePods = "pods"
	// VantageLAN is a host on the nodes' LAN.
	VantageLAN = "lan"
)

// Address returns where clients connect to for a target.
func (v *Vantage) Address(t *Target) string {
	if v.Outside {
		return t.Outside
	}
	return t.Inside
}

// PodClients starts n client pods with an image on the first node. Load generators run in their network namespaces.
func (c *Cluster) PodClients(ctx context.Context, image string, n int) (*Vantage, error) {
	no := false
	for i := range n {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("client-%d", i), Labels: map[string]string{"load": "client"}},
			Spec: corev1.PodSpec{NodeName: c.File.Nodes[0].Name, AutomountServiceAccountToken: &no,
				EnableServiceLinks: &no, Containers: []corev1.Container{{Name: "main", Image: image}}},
		}
		if _, err := c.Kube.CoreV1().Pods(c.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("create a client pod: %w", err)
		}
	}
	v := &Vantage{Name: VantagePods}
	return v, Until(ctx, ReadyTimeout, func() error {
		pods, err := c.Pods(ctx, "load=client")
		if err != nil {
			return err
		}
		if ready, _ := CountReady(pods); ready != n {
			return fmt.Errorf("%d of %d client pods are ready", ready, n)
		}
		slices.SortFunc(pods, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
		v.Hosts = nil
		for i := range pods {
			ns, err := podNamespace(&pods[i])
			if err != nil {
				return err
			}
			v.Hosts = append(v.Hosts, load.Host{Namespace: ns, Addr: pods[i].Status.PodIP})
		}
		return nil
	})
}

// lanClientsFromEnd is the first address of LANClients, counted back from the end of the LAN's subnet.
const lanClientsFromEnd = 10

// LANClients gives the cluster's client n more addresses until Close.
func (c *Cluster) LANClients(n int) (*Vantage, error) {
	v := &Vantage{Name: VantageLAN, Outside: true}
	for i := range n {
		addr, err := c.LANAddress(lanClientsFromEnd + i)
		if err != nil {
			return nil, err
		}
		v.Hosts = append(v.Hosts, load.Host{Namespace: c.Client, Addr: addr.String()})
		address := &netlink.Addr{IPNet: hostNet(addr)}
		if err := c.onClientLink(func(l netlink.Link) error { return netlink.AddrAdd(l, address) }); err != nil {
			return nil, fmt.Errorf("add the client's address %s: %w", addr, err)
		}
		c.OnClose(func() error {
			return c.onClientLink(func(l netlink.Link) error { return netlink.AddrDel(l, address) })
		})
	}
	return v, nil
}

// RouteClient gives the client a route for an address through the first node until Close, as a router that learns
// load balancer addresses by BGP would have.
func (c *Cluster) RouteClient(addr netip.Addr) error {
	route := func(l netlink.Link) *netlink.Route {
		return &netlink.Route{LinkIndex: l.Attrs().Index, Dst: hostNet(addr), Gw: net.ParseIP(c.File.Nodes[0].IP)}
	}
	if err := c.onClientLink(func(l netlink.Link) error { return netlink.RouteAdd(route(l)) }); err != nil {
		return fmt.Errorf("add the client's route to %s: %w", addr, err)
	}
	c.OnClose(func() error {
		return c.onClientLink(func(l netlink.Link) error { return netlink.RouteDel(route(l)) })
	})
	return nil
}

func hostNet(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}
}

// LANAddress returns an address of the LAN, counted back from its broadcast address. The last ones are free.
func (c *Cluster) LANAddress(fromEnd int) (netip.Addr, error) {
	prefix, err := netip.ParsePrefix(c.File.LAN.Subnet)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the cluster's LAN: %w", err)
	}
	return addressFromEnd(prefix, fromEnd), nil
}

// addressFromEnd counts back from the broadcast address of an IPv4 prefix.
func addressFromEnd(prefix netip.Prefix, n int) netip.Addr {
	b := prefix.Masked().Addr().As4()
	v := binary.BigEndian.Uint32(b[:]) + 1<<(32-prefix.Bits()) - 1 - uint32(n)
	binary.BigEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}
