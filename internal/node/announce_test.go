// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/wire"
)

// Without ARP no node answers for a service address, also not for one that it announced before, and every node serves
// what reaches it.
func TestWithoutARPNodesServeWhatReachesThem(t *testing.T) {
	l := newLAN(t)
	for name, n := range l.nodes {
		awaitFrom(l, name, func(m *wire.Node) bool { return m.Addr.String() == n.config.NodeAddr })
	}
	l.sendNodes(1, "n1", "n2")
	// answered has the client send ARP requests, and reports whether a node answers.
	answered := func() bool {
		t.Helper()
		sh(t, "ip -n client neigh del %[1]v dev eth0 || true; ip netns exec client bash -c 'echo >/dev/udp/%[1]v/9'",
			vip.Addr())
		for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if l.neighbour() != "" {
				return true
			}
			if strings.Contains(sh(t, "ip -n client neigh show %v", vip.Addr()), "FAILED") {
				return false
			}
		}
		t.Fatal("the client's search for the VIP does not end")
		return false
	}
	for end := time.Now().Add(60 * time.Second); !answered(); {
		if time.Now().After(end) {
			t.Fatal("no node announces the VIP")
		}
	}
	for _, name := range []string{"n1", "n2"} {
		l.endNode(name, syscall.SIGTERM)
		l.nodes[name].config.NoARP = true
		l.startNode(name)
	}
	l.sendNodes(2, "n1", "n2")
	for _, name := range []string{"n1", "n2"} {
		if answered() {
			t.Fatalf("%s answers for the VIP", l.neighbour())
		}
		l.forget()
		sh(t, "ip -n client neigh replace %v lladdr %s dev eth0", vip.Addr(), l.hardware(name))
		l.ask()
		awaitFrom(l, name, func(m *wire.Wake) bool { return m.Service == vip })
	}
	if answered() {
		t.Errorf("%s answers for the VIP", l.neighbour())
	}
}
