// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/envoytest"
)

// shop is a service that balances requests over this many pods.
func shop(replicas int) service {
	return service{name: "shop", more: fmt.Sprintf("minReplicas: %d\nmaxReplicas: %d\nbalancing: {level: Request}",
		replicas, max(replicas, 1))}
}

// startShop runs services with Envoy, and waits until it is the front of the first one.
func (l *lab) startShop(t *testing.T, services ...service) *up {
	t.Helper()
	u := l.startWith(t, manifest(services...), "-f", "-", "--envoy", envoytest.Path(t))
	l.awaitEnvoy(t)
	return u
}

// awaitEnvoy waits until Envoy runs.
func (l *lab) awaitEnvoy(t *testing.T) {
	t.Helper()
	eventually(t, "Envoy runs", func() bool { return l.envoy(t) != 0 })
}

// envoy returns the number of the lab's Envoy, 0 if it does not run.
func (l *lab) envoy(t *testing.T) int {
	t.Helper()
	if all := l.envoys(t); len(all) > 0 {
		return all[0]
	}
	return 0
}

// envoys returns the numbers of the lab's Envoys.
func (l *lab) envoys(t *testing.T) (pids []int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		args, err := os.ReadFile(dir + "/cmdline")
		if err == nil && strings.HasPrefix(string(args), "envoy\x00") && strings.Contains(string(args), l.run) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// instances sends n requests and returns how many each process of the service has answered.
func instances(t *testing.T, c *http.Client, address string, n int) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for range n {
		a, err := e2e.AskBy(c, address)
		if err != nil {
			t.Fatal(err)
		}
		counts[a.Instance]++
	}
	return counts
}

// untilFronted waits until requests of one connection reach several pods.
func (l *lab) untilFronted(t *testing.T, address string, pods int) {
	t.Helper()
	eventually(t, "Envoy balances requests", func() bool {
		c := e2e.HTTPClient(l.Client(), true)
		defer c.CloseIdleConnections()
		return len(instances(t, c, address, 20*pods)) == pods
	})
}

func TestRequestsOfOneConnectionGoToAllPods(t *testing.T) {
	l := newLab(t, 1)
	l.startShop(t, shop(3))
	address := l.address(t, "shop")
	l.until(t, "shop", "three pods", hasServing(3))
	l.untilFronted(t, address, 3)
	c := e2e.HTTPClient(l.Client(), true)
	defer c.CloseIdleConnections()
	const n = 900
	for instance, got := range instances(t, c, address, n) { // 300 ± 14 by chance alone
		if got < 200 || got > 400 {
			t.Errorf("%s answered %d of %d requests", instance, got, n)
		}
	}
	eventually(t, "requests of all pods are counted", func() bool {
		instances(t, c, address, 90)
		s := l.service(t, "shop")
		return !slices.ContainsFunc(s.Pods, func(p status.Pod) bool { return p.Traffic.Requests < 30 }) &&
			s.Traffic.RequestsPerSecond > 0
	})
	if top := l.must(t, "top", "shop", "--count", "1"); !strings.Contains(top, "REQ/S") {
		t.Errorf("top: %s", top)
	}
	// Envoy's end is not the end of the service.
	pid := l.envoy(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Envoy has ended", func() bool { return syscall.Kill(pid, 0) != nil })
	for range 20 {
		e2e.MustAsk(t, l.Client(), address)
	}
	l.untilFronted(t, address, 3)
	if l.envoy(t) == pid {
		t.Error("no other Envoy runs")
	}
}

// The connection of a client is kept while the service sleeps, and the next request on it wakes the service.
func TestKeptConnectionSurvivesASleep(t *testing.T) {
	l := newLab(t, 1)
	s := shop(0)
	s.idle = 2
	s.more += fmt.Sprintf("\nallowFrom: [%v/32]", l.Client().Addr) // the front may wake it all the same
	traces := l.receiveTraces(t)
	l.startShop(t, s)
	address := l.address(t, "shop")
	c := e2e.OneConnection(l.Client())
	defer c.CloseIdleConnections()
	_, err := e2e.AskBy(c, address)
	if err != nil {
		t.Fatal(err)
	}
	var ports []string
	ask := func() string {
		conn := &connections{parent: traceparentOf(len(ports))}
		a, err := conn.ask(c, address)
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, conn.local)
		return a.Instance
	}
	// Before Envoy has the pod, a request takes the way of those that wait.
	eventually(t, "Envoy is the front, and has the pod", func() bool {
		c.CloseIdleConnections()
		a, err := e2e.AskBy(c, address)
		pods := l.service(t, "shop").Pods
		return err == nil && !strings.HasPrefix(a.Client, l.Client().Addr.String()) &&
			len(pods) == 1 && pods[0].Traffic.Requests > 0
	})
	before := ask()
	for range 2 {
		l.until(t, "shop", "asleep", func(s status.Status) bool { return len(s.Pods) == 0 })
		after := ask()
		if after == before {
			t.Errorf("the same process, %s, answers after a sleep", after)
		}
		before = after
	}
	if ports[0] != ports[1] || ports[1] != ports[2] {
		t.Errorf("the client has used other connections, from %v", ports)
	}
	// The spans of both wakes, and not of the request before them, which found a pod.
	eventually(t, "the wakes are in the traces of the requests", func() bool {
		return traces.has("wake", traceparentOf(1)) && traces.has("wake", traceparentOf(2))
	})
	if traces.has("wake", traceparentOf(0)) {
		t.Error("a wake is in the trace of a request that found a pod")
	}
}

// traceparentOf is the header traceparent of a request.
func traceparentOf(i int) string { return fmt.Sprintf("00-%032x-%016x-01", i+1, i+101) }

// connections notes the local address of the connection of a request.
type connections struct {
	local  string
	parent string // the header traceparent
}

func (n *connections) ask(c *http.Client, address string) (e2e.Answer, error) {
	r, err := http.NewRequest(http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return e2e.Answer{}, err
	}
	if n.parent != "" {
		r.Header.Set("traceparent", n.parent)
	}
	return n.send(c, r)
}

// send sends a request, and returns who answered it.
func (n *connections) send(c *http.Client, r *http.Request) (e2e.Answer, error) {
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { n.local = i.Conn.LocalAddr().String() }}
	response, err := c.Do(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if err != nil {
		return e2e.Answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("answer %s: %s", response.Status, body)
	}
	return e2e.ParseAnswer(body, err)
}

// Pods are added and removed, replaced by those of another version, and killed, while clients send requests over
// connections that they keep.
func TestNoRequestIsLostWhilePodsComeAndGo(t *testing.T) {
	l := newLab(t, 1)
	f := l.files(t)
	write := func(replicas int, version string) {
		s := shop(replicas)
		s.env = map[string]string{"VERSION": version}
		f.write(t, "shop.yaml", manifest(s))
	}
	write(3, "1")
	l.startWith(t, "", "-f", f.dir, "--envoy", envoytest.Path(t))
	address := l.address(t, "shop")
	l.until(t, "shop", "three pods", hasServing(3))
	l.untilFronted(t, address, 3)
	g := l.load(t, address, keptConnections, keptConnections, newConnections)
	g.GoesOn(t)
	write(1, "1")
	l.until(t, "shop", "one pod", hasServing(1))
	g.GoesOn(t)
	write(3, "1")
	l.until(t, "shop", "three pods", hasServing(3))
	g.GoesOn(t)
	write(3, "2")
	eventually(t, "only the new version answers", func() bool {
		s := l.service(t, "shop")
		return hasServing(3)(s) && s.Service.Spec.Env[0].Value == "2" && g.Versions()["2"] > 0
	})
	g.GoesOn(t)
	for range 3 {
		victim := l.until(t, "shop", "three pods", hasServing(3)).Pods[0].ID
		for _, shim := range l.processes(append(shimProcess, victim)...) {
			for _, pid := range children(shim.pid) {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
		l.until(t, "shop", "another pod", func(s status.Status) bool {
			return hasServing(3)(s) && !slices.ContainsFunc(s.Pods, func(p status.Pod) bool { return p.ID == victim })
		})
		g.GoesOn(t)
	}
	g.Stop(t)
}

// The daemon is killed, and pods change while there is none. What Envoy has keeps it going.
func TestRequestsGoOnWhileTheDaemonIsRestarted(t *testing.T) {
	l := newLab(t, 1)
	l.startShop(t, shop(3))
	address := l.address(t, "shop")
	l.until(t, "shop", "three pods", hasServing(3))
	l.untilFronted(t, address, 3)
	g := l.load(t, address, keptConnections, newConnections)
	for range 2 {
		eventually(t, "the daemon runs", func() bool { return len(l.processes(daemonProcess...)) == 1 })
		l.killOne(t, daemonProcess...)
		g.GoesOn(t)
	}
	g.Stop(t)
	l.until(t, "shop", "three pods", hasServing(3))
	l.untilFronted(t, address, 3)
}

// The program of Envoy is replaced, as by an upgrade of its package: another one takes over beside it, and the first
// one ends once its clients have left.
func TestNoRequestIsLostWhileEnvoyIsReplaced(t *testing.T) {
	l := newLab(t, 1)
	program := filepath.Join(t.TempDir(), "envoy")
	copyFile(t, envoytest.Path(t), program)
	u := l.startWith(t, manifest(shop(3)), "-f", "-", "--envoy", program)
	l.awaitEnvoy(t)
	address := l.address(t, "shop")
	l.until(t, "shop", "three pods", hasServing(3))
	l.untilFronted(t, address, 3)
	before := l.envoys(t)
	c := e2e.HTTPClient(l.Client(), true)
	defer c.CloseIdleConnections()
	ask := func() (client, local string) {
		conn := &connections{}
		a, err := conn.ask(c, address)
		if err != nil {
			t.Fatal(err)
		}
		host, _, err := net.SplitHostPort(a.Client)
		if err != nil {
			t.Fatal(err)
		}
		return host, conn.local
	}
	old, local := ask()
	g := l.load(t, address, keptConnections, keptConnections, newConnections)
	// One that does not start replaces nothing.
	if err := os.WriteFile(program+".new", []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(program+".new", program); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the broken program has exited", func() bool { return strings.Contains(u.said(), "exit status 3") })
	g.GoesOn(t)
	if client, still := ask(); client != old || still != local {
		t.Errorf("beside a broken one, the request came from %s by %s, want %s by %s", client, still, old, local)
	}
	copyFile(t, envoytest.Path(t), program+".new")
	if err := os.Rename(program+".new", program); err != nil {
		t.Fatal(err)
	}
	eventually(t, "new clients get another Envoy", func() bool {
		a, err := e2e.AskBy(e2e.HTTPClient(l.Client(), false), address)
		return err == nil && !strings.HasPrefix(a.Client, old+":")
	})
	g.GoesOn(t)
	// A connection that its client keeps without a request stays, and its next request is answered.
	if err := syscall.Kill(before[0], 0); err != nil {
		t.Errorf("the first Envoy has ended before its client has left: %v", err)
	}
	if client, still := ask(); client != old || still != local {
		t.Errorf("the request came from %s by %s, want %s by %s", client, still, old, local)
	}
	eventually(t, "the client is asked to leave", func() bool { client, _ := ask(); return client != old })
	eventually(t, "the first Envoy has ended", func() bool { return !slices.Contains(l.envoys(t), before[0]) })
	g.GoesOn(t)
	g.Stop(t)
	l.untilFronted(t, address, 3)
	if after := l.envoys(t); len(after) != 1 {
		t.Errorf("Envoys %v, then %v", before, after)
	}
}

// An Envoy that hangs still has connections accepted by its kernel. New clients get pods once it is found out.
func TestClientsGetPodsWhileEnvoyHangs(t *testing.T) {
	l := newLab(t, 1)
	l.startShop(t, shop(2))
	address := l.address(t, "shop")
	l.until(t, "shop", "two pods", hasServing(2))
	l.untilFronted(t, address, 2)
	pid := l.envoy(t)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	eventually(t, "a pod answers itself", func() bool {
		c := e2e.HTTPClient(l.Client(), false)
		c.Timeout = time.Second
		a, err := e2e.AskBy(c, address)
		return err == nil && strings.HasPrefix(a.Client, l.Client().Addr.String())
	})
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	l.untilFronted(t, address, 2)
}

func TestWithoutEnvoyConnectionsAreBalanced(t *testing.T) {
	l := newLab(t, 1)
	s := shop(0)
	t.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	u := l.start(t, s)
	e2e.MustAsk(t, l.Client(), l.address(t, "shop"))
	if said := u.said(); !strings.Contains(said, "there is no envoy in PATH") {
		t.Errorf("the log does not say that there is no Envoy:\n%s", said)
	}
}

// copyFile copies a program.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err == nil {
		_, err = io.Copy(out, in)
		err = errors.Join(err, out.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}
