// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"testing"
	"time"
)

// part is one of the tests on the cluster.
type part struct {
	name string
	run  func(*testing.T)
}

// calm tests neither disturb others nor measure what others disturb. They run in parallel.
var calm = []part{
	{"a HorizontalPodAutoscaler scales it", testAutoscaler},
	{"the minimal manifest works", testManifest},
	{"clients everywhere wake it and keep their addresses", testEverywhere},
	{"an idle service sleeps and wakes again", testIdle},
	{"a frozen pod is there for its clients, its probes and people", testFrozen},
	{"the pod of a wake is handed over to its Deployment", testHandedOver},
	{"services of one name in two namespaces are separate", testSameName},
	{"changes under load lose no request", testChange},
	{"deleting a service refuses its parked clients", testDeleteParked},
	{"a pod that fits on no node fails the wake", testUnschedulable},
	{"the scale subresource sets the number of pods", testScale},
	{"replicas follow open connections", testFollowsConnections},
	{"a pod that writes a volume is never joined by another", testSingleWriter},
	{"clients wait until a readinessProbe succeeds", testReadyWhenProbe},
	{"a program that ignores its stop signal is told", testStubborn},
	{"NetworkPolicies decide who may connect and wake", testPolicies},
	{"images are on nodes before the first client", testPrefetch},
	{"a digest that becomes known during a wake replaces no pod", testDigestDuringWake},
	{"images of private registries are, too", testPrivate},
	{"pods start before their image is there", testLazy},
	{"a node has no key but its own", testNodeKeys},
	{"people see their own namespaces", testPeople},
	{"requests of one connection go to pods on all nodes", testRequests},
	{"the gate comes before programs of others", testOrder},
	{"Knative runs beside it", testKnative},
}

// alone are the other tests, in their order.
var alone = []part{
	{"the experiments run", testLabs}, // first, as nothing else needs Knative
	{"connections are spread evenly over pods", testBalance},
	{"a client address keeps its pod", testAffinity},
	{"a pod of the same node is preferred", testPreferLocal},
	{"a service works at once in a new namespace", testNewNamespace},
	{"the next leader finishes a wake", testLeaderKilled},
	{"a browser shows a service, also while the leader changes", testDashboard},
	{"killed daemons lose no request", testDaemonsKilled},
	{"wakes survive a lossy wire", testLossyWire},
	{"kube-proxy may run in its other mode", testProxyModes},
	{"replies go back by the edge node, and from node ports", testEdgeReplies},
	{"nodes share an image", testPeers},
	{"replicas follow resource usage", testFollowsUsage},
	{"removing pods loses no request", testDrain},
	{"addresses and connections move from a killed node", testNodeKilled},
	{"PostgreSQL is never run twice, whatever dies", testPostgres},
	// Last, as no other test can use the API server meanwhile.
	{"services work without the API server", testAPIServerDown},
}

// TestCluster runs all tests on one cluster.
func TestCluster(t *testing.T) {
	run := func(t *testing.T, p part, beside bool) {
		t.Run(p.name, func(t *testing.T) {
			if beside {
				t.Parallel()
			}
			begin := time.Now()
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(lab.logs(begin))
				}
			})
			p.run(t)
		})
	}
	t.Cleanup(func() { removeKnative(t) })
	run(t, part{"an upgrade keeps connections", testUpgrade}, false)
	t.Run("calm", func(t *testing.T) {
		for _, p := range calm {
			run(t, p, true)
		}
	})
	for _, p := range alone {
		run(t, p, false)
	}
	run(t, part{"an uninstallation leaves services that can be deleted", testUninstall}, false)
}

// logs returns what controller and daemons have logged since a time.
func (c *cluster) logs(since time.Time) string {
	out, err := c.kubectl("", "logs", "-n", productNamespace, "-l", "app.kubernetes.io/name=wangell", "--prefix",
		"--tail=-1", fmt.Sprintf("--since=%ds", int(time.Since(since).Seconds())+1))
	if err != nil {
		out += err.Error()
	}
	return out
}
