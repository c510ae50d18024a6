package kube

import (
	"fmt"
	"testing"
	"time"
)

// TestCluster runs all tests on one cluster, in this order.
func TestCluster(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Upgrade", testUpgrade},
		{"Manifest", testManifest},
		{"Everywhere", testEverywhere},
		{"Idle", testIdle},
		{"HandedOver", testHandedOver},
		{"SameName", testSameName},
		{"Change", testChange},
		{"DeleteParked", testDeleteParked},
		{"Unschedulable", testUnschedulable},
		{"Scale", testScale},
		{"Balance", testBalance},
		{"Affinity", testAffinity},
		{"PreferLocal", testPreferLocal},
		{"LeaderKilled", testLeaderKilled},
		{"DaemonsKilled", testDaemonsKilled},
		{"LossyWire", testLossyWire},
		{"APIServerDown", testAPIServerDown},
		{"ProxyModes", testProxyModes},
		{"Labs", testLabs},
		{"FollowsConnections", testFollowsConnections},
		{"FollowsUsage", testFollowsUsage},
		{"Autoscaler", testAutoscaler},
		{"Drain", testDrain},
		{"NodeKilled", testNodeKilled},
	} {
		t.Run(test.name, func(t *testing.T) {
			begin := time.Now()
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(lab.logs(begin))
				}
			})
			test.run(t)
		})
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
