// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
)

// follows are settings of spec.scaling that follow the load within seconds.
const follows = "outInterval: 1, inInterval: 1, inStabilization: 2"

// replicas waits until a service has n pods, and no others.
func (c *cluster) replicas(t *testing.T, key string, n int) {
	t.Helper()
	e2e.Eventually(t, fmt.Sprintf("%s: %d pods", key, n), func() (bool, string) {
		s, p := c.get(t, key), c.pods(t, key)
		return int(s.Status.Replicas) == n && len(p) == n, fmt.Sprintf("%+v; pods %s", s.Status, strings.Join(p, " "))
	})
}

// testFollowsConnections opens and closes connections: pods are added and removed, in the end all of them.
func testFollowsConnections(t *testing.T) {
	const key = "default/follows"
	lab.apply(t, manifest(key,
		"idleTimeout: 5\nmaxReplicas: 3\nenv: [{name: STOP, value: close}]\n"+
			"scaling: {target: 10, burstPerPod: 1000, "+follows+"}"))
	addr := lab.address(t, key)
	tr := keepAsking(t, lab.client, addr) // from the start, as kubectl may take longer than idleTimeout
	lab.replicas(t, key, 1)
	var open []net.Conn
	for range 30 {
		c, err := lab.client.Dialer().DialContext(context.Background(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		open = append(open, c)
	}
	begin := time.Now()
	lab.replicas(t, key, 3)
	t.Logf("three pods within %v", time.Since(begin))
	e2e.Eventually(t, "an event tells why", func() (bool, string) {
		events := e2e.Must(lab.kubectl("", "get", "events", "-n", "default", "--field-selector",
			"involvedObject.name=follows", "-o", "jsonpath={range .items[*]}{.message}{\"\\n\"}{end}"))(t)
		return strings.Contains(events, "connections") && strings.Contains(events, "target 10"), events
	})
	for _, c := range open {
		c.Close()
	}
	lab.replicas(t, key, 1)
	tr.Stop(t)
	lab.waitCold(t, key)
	e2e.Eventually(t, "spec.replicas of a service that sleeps", func() (bool, string) {
		s := lab.get(t, key)
		return s.Spec.Replicas != nil && *s.Spec.Replicas == 0, fmt.Sprintf("%+v", s.Spec)
	})
}

// testFollowsUsage scales by resource usage, as reported by the nodes' container runtimes.
func testFollowsUsage(t *testing.T) {
	for _, metric := range []struct {
		name   string
		target int
	}{{"cpu", 50}, {"memory", 60}} {
		t.Run(metric.name, func(t *testing.T) {
			key := "default/uses-" + metric.name
			lab.apply(t, manifest(key,
				fmt.Sprintf("idleTimeout: 600\nmaxReplicas: 2\nenv: [{name: STOP, value: close}]\n"+
					"resources: {requests: {cpu: 50m, memory: 40Mi}}\nscaling: {metric: %s, target: %d, %s}",
					metric.name, metric.target, follows)))
			addr := lab.address(t, key)
			e2e.MustAsk(t, lab.client, addr)
			lab.replicas(t, key, 1)
			if metric.name == "memory" {
				r, err := e2e.HTTPClient(lab.client, false).Get("http://" + addr + "/hold?bytes=33554432")
				if err != nil {
					t.Fatal(err)
				}
				r.Body.Close()
				lab.replicas(t, key, 2)
				return
			}
			loaded := make(chan e2e.Result, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { loaded <- wrkUntil(ctx, lab.client, addr, 2*e2e.Patience) }()
			lab.replicas(t, key, 2)
			cancel()
			if l := <-loaded; l.Lost > 0 || l.Requests == 0 {
				t.Errorf("%d of %d requests are lost:\n%s", l.Lost, l.Requests, l.Output)
			}
			lab.replicas(t, key, 1)
		})
	}
}
