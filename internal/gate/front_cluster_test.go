// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net/netip"
	"testing"

	"wangell.loutres.me/internal/decide/sources"
)

// frontedCluster is a cluster with a service of one pod, pod 1 on the home node, and a front in the network of pod 2 on
// the edge node. The front reaches the pod by the nodes' routes.
func frontedCluster(t *testing.T, shortcut bool) *cluster {
	c := newClusterOf(t, 1500, func(c *Config) { c.Shortcut = shortcut })
	c.podNet(c.home, 1, 1500)
	c.podNet(c.edge, 2, 1500)
	c.addPod(vip, c.home, 1)
	sh(t, "ip -n edge route add %v via %v; ip -n home route add %v via %v", podAt[1].Addr(), c.home.addr, podAt[2].Addr(),
		c.edge.addr)
	front := Pod{ID: FrontID, Service: vip, Addr: podAt[2]}
	c.must(inNamespace(podNS(2), func() error {
		front.MAC = linkByName(c, "eth0").Attrs().HardwareAddr
		return nil
	}))
	c.in(c.edge, func() error {
		host := linkByName(c, podNS(2)).Attrs()
		front.Ifindex, front.HostMAC = host.Index, host.HardwareAddr
		return c.edge.g.AddPod(front)
	})
	c.must(c.edge.g.ServeFront(vip, FrontID))
	for _, n := range []*node{c.edge, c.home} {
		c.must(n.g.SetFronts([]netip.Addr{podAt[2].Addr()}))
	}
	return c
}

// answered returns the name of the server that answers a connection from a namespace.
func (c *cluster) answered(from string, to netip.AddrPort) string {
	c.Helper()
	return answerTo(&network{T: c.T}, from, to)
}

// A client outside, a process on the node and a pod there get the front, and the front gets a pod on another node: at
// the pod's own address, and at the service address, where the pod network might replace its address.
func TestFrontOfANodeServesItsClientsAndReachesOtherNodes(t *testing.T) {
	for _, shortcut := range []bool{true, false} {
		t.Run(fmt.Sprintf("shortcut %v", shortcut), func(t *testing.T) {
			c := frontedCluster(t, shortcut)
			c.plainPod(1500)
			// As a pod network does that masquerades what leaves it.
			sh(t, `ip netns exec edge nft 'table ip nat {
				chain post { type nat hook postrouting priority srcnat;
					ip saddr %v ip daddr %v masquerade
				}
			}'`, podAt[2].Addr(), serviceRange)
			front, pod := &network{T: t}, &network{T: t}
			answering(front, podNS(2), podAt[2], 'f')
			answering(pod, podNS(1), podAt[1], 'p')
			c.serve(vip, 1)
			for _, ns := range []string{"client", "edge", "plain"} {
				if got := c.answered(ns, vip); got != "f" {
					t.Errorf("%s got %s", ns, got)
				}
			}
			if got := c.answered(podNS(2), vip); got != "p" {
				t.Errorf("the front got %s at the service address", got)
			}
			// With rules, too, on a node whose route to the front is not by the front's device, as with a bridge.
			_, err := c.edge.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Restricted: true,
				Sources: []sources.Rule{{Prefix: netip.PrefixFrom(podAt[2].Addr(), 32), Allow: true}}})
			c.must(err)
			sh(t, `ip -n edge link add br1 type bridge; ip -n edge link set br1 up
				ip -n edge route replace %v dev br1`, podAt[2].Addr())
			if got := c.answered(podNS(2), vip); got != "p" {
				t.Errorf("the front got %s at the service address, with rules", got)
			}
			sh(t, "ip -n edge route replace %v dev pod2; ip -n edge link del br1", podAt[2].Addr())
			_, err = c.edge.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100})
			c.must(err)
			if got := c.answered(podNS(2), podAt[1]); got != "p" {
				t.Errorf("the front got %s at the pod's own address", got)
			}
			floodServices(t, c.edge.g)
			floodServices(t, c.home.g)
			for from, node := range map[string]string{podNS(2): "the front", "home": "the pod's node"} {
				if got := c.answered(from, podAt[1]); got != "p" {
					t.Errorf("%s got %s at the pod's own address during a flood", node, got)
				}
			}
			c.edge.g.DrainFront(vip, FrontID)
			if got := c.answered("client", vip); got != "p" {
				t.Errorf("the client got %s without a front", got)
			}
		})
	}
}

// A pod's node sees what a front of another node gets from it only by the front's address.
func TestAnswersToFrontsOfOtherNodesAreUseOfThePod(t *testing.T) {
	c := frontedCluster(t, true)
	answering(&network{T: t}, podNS(1), podAt[1], 'p')
	c.serve(vip, 1)
	if got := c.answered(podNS(2), podAt[1]); got != "p" {
		t.Fatalf("the front got %s", got)
	}
	eventually(t, func() error {
		p, err := c.home.g.PodCounters(vip, 1)
		if err == nil && (p.LastPacket == 0 || p.BytesOut == 0) {
			err = fmt.Errorf("the front's connection is not counted: %+v", p)
		}
		return err
	})
	c.must(c.home.g.SetFronts(nil))
	before, err := c.home.g.PodCounters(vip, 1)
	c.must(err)
	if got := c.answered(podNS(2), podAt[1]); got != "p" {
		t.Fatalf("got %s", got)
	}
	after, err := c.home.g.PodCounters(vip, 1)
	c.must(err)
	if after.BytesOut != before.BytesOut || after.LastPacket != before.LastPacket {
		t.Errorf("a connection of what is no front counts: %+v, then %+v", before, after)
	}
}
