// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// scaled is a service that is scaled by its open connections within seconds: ten for each of at most three pods.
func scaled() service {
	return service{
		name: "scaled", env: map[string]string{"STOP": "close"},
		more: "maxReplicas: 3\nscaling: {target: 10, outInterval: 1, inInterval: 1, inStabilization: 1, burstPerPod: 1000}",
	}
}

// hasServing returns a condition for until: n pods serve, and there are no others.
func hasServing(n int) func(status.Status) bool {
	return func(s status.Status) bool { return s.Serving == n && s.Desired == n && len(s.Pods) == n }
}

// openMany opens connections and sends nothing.
func openMany(t *testing.T, from *netlab.Namespace, address string, n int) (open []net.Conn) {
	t.Helper()
	for range n {
		open = append(open, e2e.MustDial(t, from, address))
	}
	return open
}

// From zero to three pods as connections are opened, back to one as they are closed, and to zero in the end, under
// load.
func TestReplicasFollowOpenConnections(t *testing.T) {
	l := newLab(t, 2)
	s := scaled()
	s.idle = 3
	u := l.start(t, s)
	address := l.address(t, "scaled")
	e2e.MustAsk(t, l.Client(), address)
	l.until(t, "scaled", "one pod", hasServing(1))
	for range 2 {
		begin := u.now()
		g := l.load(t, address, newConnections, keptConnections)
		open := openMany(t, l.Client(), address, 30)
		l.until(t, "scaled", "three pods", hasServing(3))
		// The reason is reported with its numbers.
		u.await(t, begin, "the reason", reports(status.SeverityInfo, "target 10"))
		g.GoesOn(t)
		// New connections go to the pods with the fewest, and not to the one that has most of the earlier ones.
		counts := map[string]int{}
		for range 60 {
			counts[e2e.MustAsk(t, l.Clients[1], address).Instance]++
		}
		if len(counts) < 2 {
			t.Errorf("answers by pod: %v", counts)
		}
		for _, c := range open {
			c.Close()
		}
		l.until(t, "scaled", "one pod again", func(s status.Status) bool { return s.Desired == 1 && s.Serving == 1 })
		g.GoesOn(t)
		g.Stop(t)
		// All are gone if that took longer than the idle timeout.
		l.until(t, "scaled", "the others are gone", func(s status.Status) bool { return len(s.Pods) <= 1 })
	}
	l.untilAsleep(t, "scaled")
	e2e.MustAsk(t, l.Client(), address)
}

// The pod with the fewest connections is removed, once these have ended.
func TestScaleInKeepsOpenConnections(t *testing.T) {
	l := newLab(t, 1)
	s := lines("lines")
	s.more = "maxReplicas: 2\ndrainTimeout: 3600\nscaling: {target: 2, outInterval: 1, inInterval: 1, inStabilization: " +
		"1, burstPerPod: 1000}"
	l.start(t, s, service{name: "later"})
	address := l.address(t, "lines")
	pods := map[string][]*e2e.Conversation{}
	talkOnce := func() {
		k := e2e.MustConverse(t, l.Client(), address)
		pods[k.Greeting.Instance] = append(pods[k.Greeting.Instance], k)
	}
	for range 4 {
		talkOnce()
	}
	l.until(t, "lines", "two pods", hasServing(2))
	for len(pods) < 2 { // the next ones go to the pod that has none
		talkOnce()
	}
	// One connection stays on each pod, which is too few for two pods.
	fewer, other := "", ""
	for id, talks := range pods {
		if fewer == "" || len(talks) < len(pods[fewer]) {
			fewer = id
		}
	}
	for id, talks := range pods {
		if id != fewer {
			other = id
		}
		for _, k := range talks[1:] {
			k.Close()
		}
	}
	st := l.until(t, "lines", "one of them drains", func(s status.Status) bool {
		return s.Desired == 1 &&
			slices.ContainsFunc(s.Pods, func(p status.Pod) bool { return p.State == "draining" })
	})
	if len(st.Pods) != 2 {
		t.Errorf("while one drains: %+v", st.Pods)
	}
	for _, id := range []string{fewer, other} {
		pods[id][0].MustEcho(t, "still here")
	}
	// The gate has the drain: what the controller sends to a daemon is handled in its order, and this wake came later.
	e2e.MustAsk(t, l.Client(), l.address(t, "later"))
	// New connections go to the pod that stays.
	who := func() string {
		k := e2e.MustConverse(t, l.Client(), address)
		defer k.Close()
		return k.Greeting.Instance
	}
	stays := who()
	for range 5 {
		// Three connections are too many for one pod: a slow machine may see two pods again.
		if id := who(); id != stays && l.service(t, "lines").Desired == 1 {
			t.Errorf("%s answers, and %s before", id, stays)
		}
	}
	goes := fewer
	if stays == fewer {
		goes = other
	}
	pods[goes][0].MustEcho(t, "until the end")
	pods[goes][0].Close()
	l.until(t, "lines", "it is gone", func(s status.Status) bool { return len(s.Pods) == 1 || s.Desired > 1 })
	pods[stays][0].MustEcho(t, "and on")
}

// The pods start before the first of them listens, and each gets its share of the crowd.
func TestCrowdAtASleepingServiceStartsSeveralPods(t *testing.T) {
	// The delay ends between two SYNs of a client. Linux repeats a SYN after one, two, three and four seconds
	// (tcp_syn_linear_timeouts), and one that is repeated while pods begin to listen goes to a pod that listens already.
	const delay, repeat = 2400 * time.Millisecond, 3 * time.Second
	l := newLab(t, 1)
	s := service{name: "scaled", env: map[string]string{"LISTEN_DELAY": delay.String()},
		more: "maxReplicas: 3\nscaling: {target: 1000000, burstPerPod: 10}"}
	u := l.start(t, s)
	address := l.address(t, "scaled")
	begin := u.now()
	instances := map[string]int{}
	for _, a := range crowd(t, l.Clients, 40, address) {
		instances[a.Instance]++
	}
	u.await(t, begin, "the wake", reports(status.SeverityInfo, "warm: "))
	st := l.until(t, "scaled", "three pods", hasServing(3))
	t.Logf("answers by pod: %v; wakes: %d", instances, len(l.wakes(t, "scaled")))
	var first, last int64
	for _, p := range st.Pods {
		if ns := p.Started.UnixNano(); first == 0 || ns < first {
			first = ns
		}
		last = max(last, p.Started.UnixNano())
	}
	apart := time.Duration(last - first)
	if apart >= delay {
		t.Errorf("the pods were started %v apart: the last only after the first listened", apart)
	}
	wakes := l.wakes(t, "scaled")
	if len(wakes) != 1 {
		t.Fatalf("%d wakes, want 1", len(wakes))
	}
	// Pods that start at about the same time listen at about the same time. Clients that come later are not in the crowd,
	// and those that repeat their SYNs before the last pod listens go to the others.
	w := wakes[0]
	listens, _ := w.At(lifecycle.PhaseListening)
	if apart > 200*time.Millisecond || w.Parked < 40 || listens+apart > repeat {
		t.Logf("the machine is too busy: the pods were started %v apart, the first listened after %v, and %d were parked",
			apart, listens, w.Parked)
		return
	}
	if w.Released < w.Parked/2 {
		t.Errorf("%d of %d were released: that is one pod's share only", w.Released, w.Parked)
	}
	for _, n := range instances {
		if n > 15 {
			t.Errorf("answers by pod: %v, want at most 15 of 40 each", instances)
		}
	}
}

// Pods are started for work, and stopped without it.
func TestReplicasFollowUsage(t *testing.T) {
	for _, metric := range []struct {
		name   string
		target int
	}{{"cpu", 50}, {"memory", 60}} {
		t.Run(metric.name, func(t *testing.T) {
			l := newLab(t, 1)
			s := service{name: "busy", env: map[string]string{"STOP": "close"}, more: fmt.Sprintf(
				"maxReplicas: 2\nresources: {requests: {cpu: 100m, memory: 40Mi}}\n"+
					"scaling: {metric: %s, target: %d, outInterval: 1, inInterval: 1, inStabilization: 1}",
				metric.name, metric.target)}
			u := l.start(t, s)
			address := l.address(t, "busy")
			e2e.MustAsk(t, l.Client(), address)
			l.until(t, "busy", "one pod", hasServing(1))
			begin := u.now()
			var end func()
			if metric.name == "cpu" {
				g := l.load(t, address, keptConnections, newConnections)
				end = func() { g.Stop(t) }
			} else {
				if _, err := e2e.Get(l.Client(), address, "/hold?bytes=33554432"); err != nil {
					t.Fatal(err)
				}
				end = func() {}
			}
			l.until(t, "busy", "two pods", hasServing(2))
			e := u.await(t, begin, "the reason", reports(status.SeverityInfo, metric.name+" "))
			t.Log(e.Text)
			end()
			if metric.name == "cpu" {
				l.until(t, "busy", "one pod again", hasServing(1))
			}
		})
	}
}
