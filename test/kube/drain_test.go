// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// drainTime returns the duration of each case of testDrain, and whether all cases run at the same time: 25 s two by
// two, or WANGELL_DRAIN_TIME at the same time.
func drainTime(t *testing.T) (_ time.Duration, together bool) {
	text := os.Getenv("WANGELL_DRAIN_TIME")
	if text == "" {
		return 25 * time.Second, false
	}
	return e2e.Must(time.ParseDuration(text))(t), true
}

// testDrain removes pods in some ways, at the same time, while clients send requests, on new connections and on kept
// ones. No request may be lost. At SIGTERM the server closes its listening socket at once, so that a SYN that still
// arrives is refused.
func testDrain(t *testing.T, ways map[string]disturbance) {
	length, together := drainTime(t)
	if together {
		t.Parallel()
	}
	for name, disturb := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drain(t, "shaken-"+name, disturb, length)
		})
	}
}

// drain disturbs the pods of a service while clients send requests for a time, or for a few times as long if there was
// little disturbance.
func drain(t *testing.T, name string, disturb disturbance, length time.Duration) {
	key := "default/" + name
	lab.apply(t, manifest(key, "idleTimeout: 600\nmaxReplicas: 3\ndrainTimeout: 5\nenv: [{name: STOP, value: close}]"))
	addr := lab.address(t, key)
	e2e.Must(lab.kubectl("", "scale", "wgs", "-n", "default", name, "--replicas=3"))(t)
	e2e.Eventually(t, "three pods", func() (bool, string) {
		s := lab.get(t, key)
		d := lab.deployment(t, key)
		return s.Status.Replicas == 3 && len(lab.pods(t, key)) == 3 &&
			d == "paused= wants=3 has=3 sets=1", fmt.Sprintf("%+v, %s", s.Status, d)
	})
	d := disturb.begin(t, name)
	fresh, kept := bothFor(t, addr, length)
	// A rollout or a drain may take longer than the time. Then the case goes on, as a single disturbance proves little.
	for range 5 {
		if d.done() < 2 && fresh.Lost+kept.Lost == 0 {
			f, k := bothFor(t, addr, length)
			fresh.Add(f)
			kept.Add(k)
		}
	}
	n := d.end(t)
	for tool, l := range map[string]e2e.Result{"ab": fresh, "wrk": kept} {
		t.Logf("%s: %d requests, %d lost, the slowest %v; disturbed %d times", tool, l.Requests, l.Lost, l.Slowest, n)
		if l.Lost > 0 {
			t.Errorf("%s: %d of %d requests are lost:\n%s", tool, l.Lost, l.Requests, l.Output)
		}
		if l.Requests == 0 || n < 2 {
			t.Errorf("%s: %d requests and %d disturbances prove too little", tool, l.Requests, n)
		}
	}
}

// bothFor has clients of both kinds send requests for a time: on new connections and on kept ones. It logs in which
// part of a long time something was lost.
func bothFor(t *testing.T, addr string, length time.Duration) (fresh, kept e2e.Result) {
	t.Helper()
	for length > 0 {
		part := min(length, 30*time.Second)
		length -= part
		var f, k e2e.Result
		var both sync.WaitGroup
		both.Go(func() { f = abFor(lab.client, addr, part) })
		both.Go(func() { k = wrkUntil(context.Background(), lab.client, addr, part) })
		both.Wait()
		if f.Lost+k.Lost > 0 {
			t.Logf("in the %v before %s: %d and %d lost", part, time.Now().UTC().Format(time.TimeOnly), f.Lost, k.Lost)
		}
		fresh.Add(f)
		kept.Add(k)
	}
	return fresh, kept
}

// testProxyLoses deletes pods behind kube-proxy. Requests must be lost there, or testDrain would prove nothing.
func testProxyLoses(t *testing.T) {
	lab.apply(t, fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: plain, namespace: default}
spec:
  replicas: 3
  selector: {matchLabels: {wangell.loutres.me/service: plain}}
  template:
    metadata: {labels: {wangell.loutres.me/service: plain}}
    spec:
      automountServiceAccountToken: false
      containers:
      - name: server
        image: %q
        env: [{name: STOP, value: close}]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: plain, namespace: default}
spec:
  selector: {wangell.loutres.me/service: plain}
  ports: [{port: 80, targetPort: 8080}]
`, serverImage))
	e2e.Must(lab.kubectl("", "rollout", "status", "-n", "default", "deployment/plain", "--timeout=90s"))(t)
	ip := strings.TrimSpace(e2e.Must(lab.kubectl("", "get", "service", "-n", "default", "plain", "-o",
		"jsonpath={.spec.clusterIP}"))(t))
	awaitProxy(t, lab.nodes[0].ns, ip+":80")
	d := disturbance(deletePods).begin(t, "plain")
	var l e2e.Result
	for range 6 {
		if l.Requests < 1000 || l.Lost == 0 {
			l.Add(abFor(lab.nodes[0].ns, ip+":80", 5*time.Second))
		}
	}
	n := d.end(t)
	t.Logf("%d requests, %d lost; disturbed %d times", l.Requests, l.Lost, n)
	if l.Requests < 1000 {
		t.Errorf("%d requests prove too little:\n%s", l.Requests, l.Output)
	}
	if l.Lost == 0 {
		t.Error("nothing is lost with kube-proxy either: this load and these disturbances prove too little")
	}
}

// abFor has 100 clients send requests for a time, each on a new connection.
func abFor(from *netlab.Namespace, addr string, length time.Duration) e2e.Result {
	return e2e.AB(context.Background(), from, addr,
		"-r", "-l", "-c", "100", "-s", "30", "-t", fmt.Sprint(int(length.Seconds())), "-n", "100000000")
}

// wrkUntil has 100 clients send requests on kept connections for a time, or until ctx ends.
func wrkUntil(ctx context.Context, from *netlab.Namespace, addr string, length time.Duration) e2e.Result {
	return e2e.Wrk(ctx, from, addr, 100, length)
}

// disturbance disturbs the pods of a Deployment once. It is called until ctx ends; count is the number of calls before.
type disturbance func(ctx context.Context, name string, count int) error

// disturbing is a running disturbance.
type disturbing struct {
	cancel context.CancelFunc
	ended  chan error
	count  atomic.Int64
}

// begin starts a disturbance of a Deployment.
func (f disturbance) begin(t *testing.T, name string) *disturbing {
	ctx, cancel := context.WithCancel(context.Background())
	d := &disturbing{cancel: cancel, ended: make(chan error, 1)}
	t.Cleanup(cancel)
	go func() {
		for ctx.Err() == nil {
			if err := f(ctx, name, d.done()); err != nil {
				d.ended <- err
				return
			}
			d.count.Add(1)
		}
		d.ended <- nil
	}()
	return d
}

// end ends the disturbance and returns how often it was done.
func (d *disturbing) end(t *testing.T) int {
	t.Helper()
	d.cancel()
	if err := <-d.ended; err != nil {
		t.Error(err)
	}
	return d.done()
}

// done returns how often it was done so far.
func (d *disturbing) done() int { return int(d.count.Load()) }

// wait waits for a time, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// flap alternates between one pod and three, 10 s each.
func flap(ctx context.Context, name string, count int) error {
	_, err := lab.kubectl("", "scale", "wgs", "-n", "default", name, fmt.Sprintf("--replicas=%d", []int{1, 3}[count%2]))
	wait(ctx, 10*time.Second)
	return err
}

// deletePods deletes one of the pods and waits until it is gone.
func deletePods(ctx context.Context, name string, _ int) error {
	out, err := lab.kubectl("", "get", "pods", "-n", "default", "-l", "wangell.loutres.me/service="+name, "-o",
		`jsonpath={range .items[?(@.status.phase=="Running")]}{.metadata.name}{"\n"}{end}`)
	pods := strings.Fields(out)
	if err != nil || len(pods) == 0 {
		return err
	}
	if _, err = lab.kubectl("", "delete", "pod", "-n", "default", "--ignore-not-found",
		pods[rand.IntN(len(pods))]); err == nil {
		wait(ctx, time.Second)
	}
	return err
}

// rollOut replaces all pods.
func rollOut(ctx context.Context, name string, _ int) error {
	if _, err := lab.kubectl("", "rollout", "restart", "-n", "default", "deployment/"+name); err != nil {
		return err
	}
	_, err := lab.kubectl("", "rollout", "status", "-n", "default", "deployment/"+name, "--timeout="+e2e.Patience.String())
	wait(ctx, time.Second)
	return err
}

// drainNodes drains a node and uncordons it, each time the next one.
func drainNodes(ctx context.Context, _ string, count int) error {
	node := lab.nodes[count%len(lab.nodes)].name
	_, err := lab.kubectl("", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
		"--timeout="+e2e.Patience.String())
	wait(ctx, 5*time.Second)
	if _, e := lab.kubectl("", "uncordon", node); err == nil {
		err = e
	}
	wait(ctx, 5*time.Second)
	return err
}
