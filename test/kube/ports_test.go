// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"wangell.loutres.me/test/testutil/e2e"
)

// testPorts wakes a service with several ports by the last one to open, from a node without its pod and from outside,
// and by its name. A port that never opens refuses its own clients.
func testPorts(t *testing.T) {
	const key = "default/ports"
	one := on(lab.nodes[0], key)
	one = strings.Replace(one, "  targetPort: 8080\n  port: 80\n", "  wakeTimeout: 20\n  ports:\n"+
		"  - {name: http, port: 80, targetPort: web}\n  - {name: https, port: 443, targetPort: 8443}\n"+
		"  - {name: metrics, port: 9113}\n", 1)
	container := fmt.Sprintf("{name: server, image: %q", serverImage)
	one = strings.Replace(one, container, container+", ports: [{name: web, containerPort: 8080}], "+
		"env: [{name: MORE_PORTS, value: '8443'}, {name: MORE_DELAY, value: 200ms}]", 1)
	lab.apply(t, one)
	vip := netip.MustParseAddrPort(lab.address(t, key)).Addr()
	at := func(port uint16) string { return netip.AddrPortFrom(vip, port).String() }
	lab.waitCold(t, key)
	first := e2e.MustAsk(t, lab.client, at(443))
	for _, address := range []string{at(80), at(443)} {
		for _, from := range lab.nodes[:2] {
			if a := e2e.MustAsk(t, from.ns, address); a.Instance != first.Instance {
				t.Errorf("%s from %s: another pod answered", address, from.name)
			}
		}
	}
	if pods := lab.pods(t, key); len(pods) != 1 {
		t.Errorf("pods %v, want one", pods)
	}
	if _, err := e2e.Ask(lab.client, at(9113)); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a port that never opens: %v, want connection refused", err)
	}
	e2e.Eventually(t, "a message about that port", func() (bool, string) {
		m := lab.get(t, key).Status.Message
		return strings.Contains(m, "clients of port 9113 (metrics) are refused"), m
	})
	ports := e2e.Must(lab.kubectl("", "get", "service", "-n", "default", "ports", "-o",
		"jsonpath={.spec.ports[*].name} {.spec.ports[*].port}"))(t)
	slice := e2e.Must(lab.kubectl("", "get", "endpointslice", "-n", "default", "ports", "-o",
		"jsonpath={.ports[*].name} {.ports[*].port}"))(t)
	// The API server does not keep the order of an EndpointSlice's ports.
	if ports != "http https metrics 80 443 9113" || len(strings.Fields(slice)) != 6 {
		t.Errorf("ports of the Service %q, of its slice %q", ports, slice)
	}
}
