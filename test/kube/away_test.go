// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/test/testutil/e2e"
)

// testDaemonAway kills the daemon of a node whenever it runs, and nothing else there. Its address moves, while a frozen
// pod there and the Envoy there have clients.
func testDaemonAway(t *testing.T) {
	const frozen = "default/frozen-away"
	lab.apply(t, frozenManifest(frozen, 1, ""))
	k := e2e.MustConverse(t, lab.client, lab.address(t, frozen))
	home := lab.node(lab.pod(t, frozen).Spec.NodeName)
	key, addr := lab.announcedBy(t, home, "default/fronted", func(key string) string {
		return manifest(key, "idleTimeout: 600\nbalancing: {level: Request}\n")
	})
	vip, envoys := netip.MustParseAddrPort(addr).Addr(), lab.envoys(t)
	c := e2e.OneConnection(lab.client)
	t.Cleanup(c.CloseIdleConnections)
	var first string
	e2e.Eventually(t, key+": the Envoy of "+home.name+" is the front", func() (bool, string) {
		c.CloseIdleConnections()
		a, connection := askOn(t, c, addr)
		first = connection
		envoy := envoys[a.ClientAddr()]
		return envoy != nil && envoy.Spec.NodeName == home.name, a.Client
	})
	goesOn := func(when string) {
		t.Helper()
		if _, connection := askOn(t, c, addr); connection != first {
			t.Errorf("%s: the connection from %s has ended, the next is from %s", when, first, connection)
			first = connection
		}
	}
	lab.untilFrozen(t, frozen)

	back := home.withoutDaemon(t)
	k.MustEcho(t, "is nobody there?")
	// The gate of the node still answers as well.
	e2e.Eventually(t, "another node announces the address", func() (bool, string) {
		by := lab.answerers(vip)
		return slices.ContainsFunc(by, func(n *node) bool { return n != home }), fmt.Sprintf("%d nodes answer", len(by))
	})
	goesOn("the address has moved")
	e2e.MustAsk(t, lab.client, addr) // by the Envoy of the other node
	back()
	lab.waitDaemons(t)
	k.MustEcho(t, "the daemon is back")
	e2e.Eventually(t, "the address is back", func() (bool, string) {
		by := lab.answerers(vip)
		return len(by) == 1 && by[0] == home, fmt.Sprintf("%d nodes answer", len(by))
	})
	goesOn("the address is back")
}

// withoutDaemon kills the daemon of a node, and each that kubelet starts in its place, until back is called.
func (n *node) withoutDaemon(t *testing.T) (back func()) {
	t.Helper()
	var pods corev1.PodList
	if err := lab.api.List(t.Context(), &pods, client.InNamespace(productNamespace)); err != nil {
		t.Fatal(err)
	}
	uid := ""
	for _, p := range pods.Items {
		if p.Spec.NodeName == n.name && strings.HasPrefix(p.Name, daemonName) {
			uid = string(p.UID)
		}
	}
	pid, err := processOf(uid, "--token-file=") // the container beside it has no such flag
	if err != nil {
		t.Fatal(fmt.Errorf("daemon of %s: %w", n.name, err))
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			if pid, err := processOf(uid, "--token-file="); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}()
	back = sync.OnceFunc(func() { close(stop); <-stopped })
	t.Cleanup(back)
	return back
}
