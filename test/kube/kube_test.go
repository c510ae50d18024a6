// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"testing"
	"time"
)

// suite has the tests of one subject on the cluster. "go test -run '/images'" runs a suite, "-run '/images/private'"
// one of its cases.
type suite struct {
	name  string
	cases []part
}

// part is one case of a suite.
type part struct {
	name string
	run  func(*testing.T)
}

// calm suites neither disturb others nor measure what others disturb. All their cases run in parallel.
var calm = []suite{
	{"scaling", []part{
		{"a HorizontalPodAutoscaler scales it", testAutoscaler},
		{"the scale subresource sets the number of pods", testScale},
		{"replicas follow open connections", testFollowsConnections},
	}},
	{"service", []part{
		{"the minimal manifest works", testManifest},
		{"clients everywhere wake it and keep their addresses", testEverywhere},
		{"its ports wake it together", testPorts},
		{"an idle service sleeps and wakes again", testIdle},
		{"a frozen pod is there for its clients, its probes and people", testFrozen},
		{"the pod of a wake is handed over to its Deployment", testHandedOver},
		{"services of one name in two namespaces are separate", testSameName},
		{"changes under load lose no request", testChange},
		{"deleting a service refuses its parked clients", testDeleteParked},
		{"a pod that fits on no node fails the wake", testUnschedulable},
		{"a pod that writes a volume is never joined by another", testSingleWriter},
		{"clients wait until a readinessProbe succeeds", testReadyWhenProbe},
		{"a program that ignores its stop signal is told", testStubborn},
		{"failures explain themselves", testFailures},
	}},
	{"access", []part{
		{"NetworkPolicies decide who may connect and wake", testPolicies},
		{"a node has no key but its own", testNodeKeys},
		{"people see their own namespaces", testPeople},
		{"the gate comes before programs of others", testOrder},
	}},
	{"images", []part{
		{"images are on nodes before the first client", testPrefetch},
		{"a digest that becomes known during a wake replaces no pod", testDigestDuringWake},
		{"images of private registries are, too", testPrivate},
		{"pods start before their image is there", testLazy},
	}},
	{"requests", []part{
		{"requests of one connection go to pods on all nodes", testRequests},
	}},
	{"lab", []part{
		{"Knative runs beside it", testKnative},
	}},
}

// alone are the other suites. Their cases run one after another.
var alone = []suite{
	{"lab", []part{
		{"the experiments run", testLabs}, // first, as nothing else needs Knative
	}},
	{"balancing", []part{
		{"connections are spread evenly over pods", testBalance},
		{"a client address keeps its pod", testAffinity},
		{"a pod of the same node is preferred", testPreferLocal},
	}},
	{"service", []part{
		{"a service works at once in a new namespace", testNewNamespace},
		{"a wake makes few writes", testWakeWrites},
	}},
	{"faults", []part{
		{"the next leader finishes a wake", testLeaderKilled},
		{"a browser shows a service, also while the leader changes", testDashboard},
		{"killed daemons lose no request", testDaemonsKilled},
		{"a node serves while its daemon is away", testDaemonAway},
		{"wakes survive a lossy wire", testLossyWire},
	}},
	{"edge", []part{
		{"kube-proxy may run in its other mode", testProxyModes},
		{"replies go back by the edge node, and from node ports", testEdgeReplies},
	}},
	{"images", []part{
		{"nodes share an image", testPeers},
	}},
	{"scaling", []part{
		{"replicas follow resource usage", testFollowsUsage},
	}},
	{"removal", []part{ // of pods, which loses no request
		{"kube-proxy loses some", testProxyLoses},
		{"scaled and deleted", func(t *testing.T) {
			testDrain(t, map[string]disturbance{"scaled": flap, "deleted": deletePods})
		}},
		{"rollouts and drained nodes", func(t *testing.T) {
			testDrain(t, map[string]disturbance{"rollouts": rollOut, "drained": drainNodes})
		}},
	}},
	{"outages", []part{
		{"addresses and connections move from a killed node", testNodeKilled},
		{"PostgreSQL is never run twice, whatever dies", testPostgres},
		{"a wake makes one pod, whatever stops", testWakeFaults},
		// Last, as no other test can use the API server meanwhile.
		{"services work without the API server", testAPIServerDown},
	}},
}

// TestUpgrade runs first: the other tests use what it upgrades to, and install that if it was not selected.
func TestUpgrade(t *testing.T) {
	t.Run("installation", func(t *testing.T) {
		t.Run("an upgrade keeps connections", func(t *testing.T) { logged(t, testUpgrade) })
	})
}

func TestCalm(t *testing.T) {
	for _, s := range calm {
		s.run(t, true)
	}
}

func TestAlone(t *testing.T) {
	for _, s := range alone {
		s.run(t, false)
	}
}

// TestUninstall runs last.
func TestUninstall(t *testing.T) {
	suite{"installation", []part{{"an uninstallation leaves services that can be deleted", testUninstall}}}.run(t, false)
}

// run runs the selected cases, in parallel or one after another, each with the product of this tree installed.
func (s suite) run(t *testing.T, parallel bool) {
	t.Run(s.name, func(t *testing.T) {
		if parallel {
			t.Parallel()
		}
		for _, p := range s.cases {
			t.Run(p.name, func(t *testing.T) {
				if parallel {
					t.Parallel()
				}
				if err := installThis(); err != nil {
					t.Fatal(err)
				}
				logged(t, p.run)
			})
		}
	})
}

// logged runs a case. If it fails, what the product has logged meanwhile is part of its output.
func logged(t *testing.T, run func(*testing.T)) {
	begin := time.Now()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(lab.logs(begin))
		}
	})
	run(t)
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
