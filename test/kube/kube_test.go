// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"testing"
	"time"
)

// A part is one of the tests on the cluster.
type part struct {
	name string
	run  func(*testing.T)
}

// calm are those that disturb nobody and measure nothing that others disturb: they run beside each other.
var calm = []part{
	{"Autoscaler", testAutoscaler},
	{"Manifest", testManifest},
	{"Everywhere", testEverywhere},
	{"Idle", testIdle},
	{"HandedOver", testHandedOver},
	{"SameName", testSameName},
	{"Change", testChange},
	{"DeleteParked", testDeleteParked},
	{"Unschedulable", testUnschedulable},
	{"Scale", testScale},
	{"FollowsConnections", testFollowsConnections},
}

// alone are the others, in their order.
var alone = []part{
	{"Balance", testBalance},
	{"Affinity", testAffinity},
	{"PreferLocal", testPreferLocal},
	{"LeaderKilled", testLeaderKilled},
	{"DaemonsKilled", testDaemonsKilled},
	{"LossyWire", testLossyWire},
	{"ProxyModes", testProxyModes},
	{"Labs", testLabs},
	{"FollowsUsage", testFollowsUsage},
	{"Drain", testDrain},
	{"NodeKilled", testNodeKilled},
	// Last, as it takes the API server from everybody.
	{"APIServerDown", testAPIServerDown},
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
	run(t, part{"Upgrade", testUpgrade}, false)
	t.Run("Calm", func(t *testing.T) {
		for _, p := range calm {
			run(t, p, true)
		}
	})
	for _, p := range alone {
		run(t, p, false)
	}
}

// logs is what controller and daemons said since a time.
func (c *cluster) logs(since time.Time) string {
	out, err := c.kubectl("", "logs", "-n", productNamespace, "-l", "app.kubernetes.io/name=wangell", "--prefix", "--tail=-1", fmt.Sprintf("--since=%ds", int(time.Since(since).Seconds())+1))
	if err != nil {
		out += err.Error()
	}
	return out
}
