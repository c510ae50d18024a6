// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"wangell.loutres.me/test/testutil/e2e"
)

// testEdgeReplies installs the product as in a network that drops sources other than a node's own: replies go back by
// the node that the client's packets came to, and services have node ports.
func testEdgeReplies(t *testing.T) {
	if err := helm(root, thisTag, "daemon.replies=Edge", "controller.nodePorts=true"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := helm(root, thisTag); err != nil {
			t.Error(err)
		}
		lab.waitDaemons(t)
	})
	lab.waitDaemons(t)
	edge, home := lab.nodes[0], lab.nodes[1]
	key, addr := lab.announcedBy(t, edge, "default/edged", func(key string) string { return on(home, key) })
	lab.waitCold(t, key)
	vip := netip.MustParseAddrPort(addr).Addr()
	lab.repliesComeFrom(t, vip, edge, func() {
		e2e.MustAsk(t, lab.client, addr)
		e2e.MustAsk(t, lab.client, addr)
	})

	namespace, name, _ := strings.Cut(key, "/")
	port := e2e.Must(lab.kubectl("", "get", "service", "-n", namespace, name, "-o",
		"jsonpath={.spec.ports[0].nodePort}"))(t)
	for _, n := range lab.nodes {
		at := n.ip.String() + ":" + port
		awaitProxy(t, lab.client, at)
		if n == lab.nodes[2] {
			lab.sleep(t, key)
		}
		lab.repliesComeFrom(t, n.ip, n, func() { e2e.MustAsk(t, lab.client, at) })
	}
}

// repliesComeFrom checks that the outside client gets TCP segments from an address while f runs, all sent by one node.
func (c *cluster) repliesComeFrom(t *testing.T, source netip.Addr, n *node, f func()) {
	t.Helper()
	want := e2e.Must(n.hardware())(t)
	link := e2e.Must(c.client.Capture("eth0"))(t)
	f()
	replies := 0
	for _, p := range e2e.Must(link.Close())(t) {
		ip, _, ok := p.TCP()
		if !ok || p.Outgoing || ip.SrcIP.String() != source.String() {
			continue
		}
		replies++
		if from := p.Decode().Layer(layers.LayerTypeEthernet).(*layers.Ethernet).SrcMAC.String(); from != want {
			t.Errorf("a segment of %v comes from %s, not from %s (%s)", source, from, n.name, want)
		}
	}
	if replies == 0 {
		t.Errorf("no segment of %v", source)
	}
}
