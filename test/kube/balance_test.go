// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// spread is the manifest of a service whose pods are spread over all nodes and whose server speaks first, so that each
// connection is known to belong to a certain pod. More is added to its spec.
func spread(key, more string) string {
	_, name, _ := strings.Cut(key, "/")
	template := fmt.Sprintf(`template:
  spec:
    topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: DoNotSchedule
      labelSelector: {matchLabels: {wangell.loutres.me/service: %s}}
    containers:
    - {name: server, image: %q, env: [{name: MODE, value: lines}]}
`, name, serverImage)
	return strings.Replace(manifest(key, "idleTimeout: 600\nmaxReplicas: 5\n"+more+template), "  image: "+serverImage+"\n",
		"", 1)
}

// scaled scales a service to n pods and waits for them.
func (c *cluster) scaled(t *testing.T, key string, n int) {
	t.Helper()
	namespace, name, _ := strings.Cut(key, "/")
	e2e.Must(c.kubectl("", "scale", "wgs", "-n", namespace, name, fmt.Sprintf("--replicas=%d", n)))(t)
	e2e.Eventually(t, fmt.Sprintf("%s: %d pods", key, n), func() (bool, string) {
		s := c.get(t, key)
		return int(s.Status.Replicas) == n && s.Status.State == "Warm", fmt.Sprintf("%+v", s.Status)
	})
}

// holding are open connections by the instance of their pod.
type holding map[string][]*e2e.Conversation

// open opens n connections, one after the other.
func (h holding) open(t *testing.T, from *netlab.Namespace, address string, n int) {
	t.Helper()
	for range n {
		c := e2e.Must(e2e.Converse(from.Dialer(), address))(t)
		h[c.Greeting.Instance] = append(h[c.Greeting.Instance], c)
	}
}

// end ends all connections of a pod.
func (h holding) end(t *testing.T, pod string) {
	t.Helper()
	for _, c := range h[pod] {
		if err := c.End(); err != nil {
			t.Error(err)
		}
	}
	h[pod] = nil
}

func (h holding) endAll(t *testing.T) {
	t.Helper()
	for pod := range h {
		h.end(t, pod)
	}
}

// counts returns the number of connections of each pod, in ascending order.
func (h holding) counts() (n []int) {
	for _, c := range h {
		n = append(n, len(c))
	}
	slices.Sort(n)
	return n
}

// uneven returns the difference between the most and the fewest connections of the pods.
func uneven(n []int) int { return slices.Max(n) - slices.Min(n) }

// testBalance spreads connections over five pods, from one edge node and from several.
func testBalance(t *testing.T) {
	const key = "default/even"
	lab.apply(t, spread(key, ""))
	addr := lab.address(t, key)
	lab.scaled(t, key, 5)
	h := holding{}
	defer h.endAll(t)
	t.Run("one edge node", func(t *testing.T) {
		trials(t, "connections of the pods", func() string {
			// Every gate knows all pods once each pod has a connection.
			e2e.Eventually(t, "each pod takes a connection", func() (bool, string) {
				h.endAll(t)
				clear(h)
				h.open(t, lab.client, addr, 5)
				return len(h) == 5, fmt.Sprint(h.counts())
			})
			for range 28 {
				if h.open(t, lab.client, addr, 1); uneven(h.counts()) > 1 {
					return fmt.Sprint(h.counts())
				}
			}
			// Two pods lose their connections, and get all of the next ones.
			pods := slices.Sorted(maps.Keys(h))
			gone := len(h[pods[0]]) + len(h[pods[3]])
			h.end(t, pods[0])
			h.end(t, pods[3])
			h.open(t, lab.client, addr, gone)
			if n := h.counts(); uneven(n) > 1 {
				return fmt.Sprint("after some were closed and others opened: ", n)
			}
			return ""
		})
	})
	t.Run("several edge nodes", func(t *testing.T) {
		// Nearly all connections belong to one edge node and two pods. The other nodes even that out, although their gates
		// have none yet.
		h.open(t, lab.client, addr, 100-33)
		pods := slices.Sorted(maps.Keys(h))
		for _, pod := range pods[2:] {
			h.end(t, pod)
		}
		want := len(h[pods[0]])
		others := holding{}
		defer others.endAll(t)
		e2e.Eventually(t, "all nodes balance by the counts of the others", func() (bool, string) {
			others.endAll(t)
			// The nodes exchange their counts meanwhile.
			time.Sleep(700 * time.Millisecond)
			for range want {
				time.Sleep(50 * time.Millisecond) // a burst would be faster than the exchange of counts
				for _, n := range lab.nodes {
					others.open(t, n.ns, addr, 1)
				}
			}
			var n []int
			for _, pod := range pods {
				n = append(n, len(h[pod])+len(others[pod]))
			}
			// Each node is even within one by the counts that it has, which are slightly old. Without the counts of others the
			// difference would be about twenty.
			t.Logf("connections of the pods: %v", n)
			return uneven(n) <= 4, fmt.Sprint(n)
		})
	})
}

// clientAddresses gives the client outside more addresses on the nodes' LAN.
func clientAddresses(t *testing.T, n int) (out []netip.Addr) {
	t.Helper()
	base := netip.MustParseAddr(lab.Client.IP).As4()
	for i := range n {
		a := netip.AddrFrom4([4]byte{base[0], base[1], base[2] + 1, byte(i + 1)})
		for _, do := range []string{"add", "del"} {
			change := func() {
				if b, err := lab.client.Command(context.Background(), "ip", "addr", do, a.String()+"/32", "dev",
					lab.Client.Interface).CombinedOutput(); err != nil {
					t.Errorf("ip addr %s %v: %v: %s", do, a, err, b)
				}
			}
			if do == "add" {
				change()
			} else {
				t.Cleanup(change)
			}
		}
		out = append(out, a)
	}
	return out
}

// testAffinity checks that a client address keeps its pod, and that most keep it when a pod is added.
func testAffinity(t *testing.T) {
	const key = "default/sticky"
	lab.apply(t, spread(key, "sessionAffinity: ClientIP\n"))
	addr := lab.address(t, key)
	lab.scaled(t, key, 3)
	clients := clientAddresses(t, 48)
	// pods returns the pod of each client's connections.
	pods := func() map[netip.Addr]string {
		out := map[netip.Addr]string{}
		for _, a := range clients {
			d := lab.client.Dialer()
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
			c := e2e.Must(e2e.Converse(d, addr))(t)
			if err := c.End(); err != nil {
				t.Error(err)
			}
			if c.Greeting.ClientAddr() != a {
				t.Fatalf("client %v is %v to its pod", a, c.Greeting.ClientAddr())
			}
			out[a] = c.Greeting.Instance
		}
		return out
	}
	distinct := func(m map[netip.Addr]string) map[string]int {
		out := map[string]int{}
		for _, pod := range m {
			out[pod]++
		}
		return out
	}
	var first map[netip.Addr]string
	trials(t, "clients that keep their pods", func() string {
		e2e.Eventually(t, "the clients are on three pods", func() (bool, string) {
			first = pods()
			n := distinct(first)
			return len(n) == 3, fmt.Sprint(n)
		})
		for range 2 {
			if again := pods(); !maps.Equal(first, again) {
				return fmt.Sprintf("%v, and then %v", first, again)
			}
		}
		return ""
	})
	lab.scaled(t, key, 4)
	var then map[netip.Addr]string
	e2e.Eventually(t, "the new pod has clients", func() (bool, string) {
		then = pods()
		n := distinct(then)
		return len(n) == 4, fmt.Sprint(n)
	})
	moved := 0
	for a, pod := range first {
		if then[a] != pod {
			moved++
		}
	}
	// A quarter is expected to move: 12 of 48, with a standard deviation of 3.
	if moved > len(clients)/2 {
		t.Errorf("%d of %d clients changed their pods", moved, len(clients))
	}
	t.Logf("with three pods %v, with four %v: %d of %d clients moved", distinct(first), distinct(then), moved,
		len(clients))
}

// testPreferLocal checks that a pod of the same node is preferred even if it has more connections, and that a node
// without pods uses those of others.
func testPreferLocal(t *testing.T) {
	const key = "default/near"
	lab.apply(t, spread(key, "balancing: {localityPreference: Local}\n"))
	addr := lab.address(t, key)
	lab.scaled(t, key, len(lab.nodes))
	var out string
	// The API has a pod's address up to a second later than the daemons.
	e2e.Eventually(t, "addresses of all pods", func() (bool, string) {
		out = e2e.Must(lab.kubectl("", "get", "pods", "-n", "default", "-l", "wangell.loutres.me/service=near",
			"-o", `jsonpath={range .items[*]}{.spec.nodeName} {.status.podIP}{"\n"}{end}`))(t)
		return len(strings.Fields(out)) == 2*len(lab.nodes), out
	})
	local := map[string]string{} // the instance of the pod on each node
	for line := range strings.Lines(out) {
		name, ip, _ := strings.Cut(strings.TrimSpace(line), " ")
		c := e2e.Must(e2e.Converse(lab.node(name).ns.Dialer(), net.JoinHostPort(ip, "8080")))(t)
		local[name] = c.Greeting.Instance
		if err := c.End(); err != nil {
			t.Error(err)
		}
	}
	if len(local) != len(lab.nodes) {
		t.Fatalf("pods are not on all nodes:\n%s", out)
	}
	for _, n := range lab.nodes {
		trials(t, n.name+": connections of its own pod", func() string {
			h := holding{}
			defer h.endAll(t)
			e2e.Eventually(t, n.name+": its gate has its pod", func() (bool, string) {
				h.endAll(t)
				h.open(t, n.ns, addr, 1)
				return len(h[local[n.name]]) > 0, fmt.Sprint(h.counts())
			})
			h.open(t, n.ns, addr, 9)
			if got := len(h[local[n.name]]); got != 10 {
				return fmt.Sprintf("%d of 10", got)
			}
			return ""
		})
	}
	// A node without a pod uses the others.
	lab.scaled(t, key, len(lab.nodes)-1)
	e2e.Eventually(t, "one pod is gone", func() (bool, string) {
		p := lab.pods(t, key)
		return len(p) == len(lab.nodes)-1, strings.Join(p, " ")
	})
	for _, n := range lab.nodes {
		h := holding{}
		h.open(t, n.ns, addr, 3)
		h.endAll(t)
	}
}
