// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/show/view"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/envoytest"
)

// shopTraffic is a service whose requests go to two others.
const shopTraffic = `---
apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata: {name: shop}
spec:
  port: 80
  traffic:
    - {revision: shop-v1, percent: 90}
    - {revision: shop-v2, percent: 10, tag: canary}
`

// askTag sends a request for the revision with a tag, and returns who answered.
func askTag(t *testing.T, c *http.Client, address, tag string) e2e.Answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Wangell-Tag", tag)
	a, err := (&connections{}).send(c, r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Requests of one service go to two others by percentages. Each of these sleeps and wakes on its own.
func TestTrafficIsSplitAmongRevisions(t *testing.T) {
	l := newLab(t, 1)
	revision := func(version string) service {
		return service{
			name: "shop-v" + version, idle: 3, env: map[string]string{"VERSION": version}, more: "balancing: {level: Request}",
		}
	}
	l.startWith(t, manifest(revision("1"), revision("2"))+shopTraffic, "-f", "-", "--envoy", envoytest.Path(t))
	address := l.address(t, "shop")
	c := e2e.HTTPClient(l.Client(), true)
	defer c.CloseIdleConnections()

	// A request wakes its revision, and no other one. Clients wait until Envoy has started.
	if a := askTag(t, c, address, "canary"); a.Version != "2" {
		t.Fatalf("the tag: version %s", a.Version)
	}
	if s := l.service(t, "shop-v1"); len(s.Pods) > 0 {
		t.Errorf("a request for the other revision has woken shop-v1: %+v", s.Pods)
	}
	if s := l.service(t, "shop"); len(s.Pods) > 0 || s.Service.Status.State != "Warm" {
		t.Errorf("a service without pods: %s, %+v", s.Service.Status.State, s.Pods)
	}
	asInManifest := func() { l.must(t, "rollout", "promote", "shop", "--percent", "10") }
	asInManifest() // a run of the test before that has failed may have left other percentages in the state folder
	defer asInManifest()
	const n = 1000
	got := map[string]int{}
	for range n {
		a, err := e2e.AskBy(c, address)
		if err != nil {
			t.Fatal(err)
		}
		got[a.Version]++
	}
	if got["1"]+got["2"] != n || got["2"] < 40 || got["2"] > 160 { // 100 with a standard deviation of 9.5
		t.Errorf("10 %% of %d requests: %v", n, got)
	}
	l.until(t, "shop-v2", "counted requests", func(s status.Status) bool {
		askTag(t, c, address, "canary") // Envoy reports once a second, from the second on in which it gets to know the pod
		return s.Traffic.Requests > 0
	})

	// Each of them sleeps, also while a client keeps its connection and the other one is used.
	l.until(t, "shop-v2", "sleep while shop-v1 is used", func(s status.Status) bool {
		for range 5 {
			if _, err := e2e.AskBy(e2e.HTTPClient(l.Client(), false), l.address(t, "shop-v1")); err != nil {
				t.Fatal(err)
			}
		}
		return len(s.Pods) == 0
	})
	l.untilAsleep(t, "shop-v1")
	if a := askTag(t, c, address, "canary"); a.Version != "2" {
		t.Errorf("after a sleep: version %s", a.Version)
	}
	if s := l.service(t, "shop-v1"); len(s.Pods) > 0 {
		t.Errorf("a request for the other revision has woken shop-v1: %+v", s.Pods)
	}

	// Other percentages, for the connection that the client has.
	rolledOut := func(version string) {
		t.Helper()
		row := 0
		eventually(t, "all requests get version "+version, func() bool {
			a, err := e2e.AskBy(c, address)
			if err != nil {
				t.Fatal(err)
			}
			if row++; a.Version != version {
				row = 0
			}
			return row == 50
		})
	}
	if said := l.must(t, "rollout", "promote", "shop"); !strings.Contains(said, "shop-v1 0 %, shop-v2 100 %") {
		t.Errorf("promote: %s", said)
	}
	rolledOut("2")
	var status view.Rollout
	if err := decode(l.must(t, "rollout", "status", "shop", "-o", "json"), &status); err != nil {
		t.Fatal(err)
	}
	if r := status.Revisions; len(r) != 2 || r[1].Percent != 100 || r[1].State == view.Missing || r[1].Requests == 0 ||
		r[1].FailedRequests > 0 {
		t.Errorf("status: %+v", status)
	}
	l.must(t, "rollout", "abort", "default/shop")
	rolledOut("1")

	// Clients wait while there is no Envoy.
	pid := l.envoy(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Envoy has ended", func() bool { return syscall.Kill(pid, 0) != nil })
	anew := e2e.HTTPClient(l.Client(), false)
	if a := askTag(t, anew, address, "canary"); a.Version != "2" {
		t.Errorf("after the end of Envoy: version %s", a.Version)
	}

	_, err := l.wangell("sleep", "shop")
	if err == nil || !strings.Contains(err.Error(), "name one of its revisions, shop-v1") {
		t.Errorf("sleep of a service without pods: %v", err)
	}
}

// untilAnswered has clients ask at an address from now on, until each has an answer. The only failure that they may
// meet is that nothing is there yet. The channel gets one error or nil.
func (l *lab) untilAnswered(address string) <-chan error {
	const clients = 4
	ends, all := make(chan error, clients), make(chan error, 1)
	for range clients {
		go func() {
			c := e2e.HTTPClient(l.Client(), false)
			for begin := time.Now(); ; time.Sleep(time.Millisecond) {
				_, err := e2e.AskBy(c, address)
				var dial *net.OpError
				if errors.As(err, &dial) && dial.Op == "dial" && time.Since(begin) < e2e.Patience {
					continue
				}
				ends <- err
				return
			}
		}()
	}
	go func() {
		var errs []error
		for range clients {
			errs = append(errs, <-ends)
		}
		all <- errors.Join(errs...)
	}()
	return all
}

// A service and its revisions are in one file, whose changes are applied at once: no request fails from the moment when
// the service exists.
func TestRequestsWaitForRevisionsOfTheSameFile(t *testing.T) {
	const address = "10.46.100.77"
	l := newLab(t, 1)
	f := l.files(t)
	f.write(t, "other.yaml", manifest(service{name: "other", more: "balancing: {level: Request}"}))
	l.startWith(t, "", "-f", f.dir, "--envoy", envoytest.Path(t))
	l.awaitEnvoy(t)
	e2e.MustAsk(t, l.Client(), l.address(t, "other"))
	apply := func(percents ...int) { // of versions 1, 2, ..., -1 for none
		var traffic strings.Builder
		fmt.Fprintf(&traffic, "---\napiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\n"+
			"metadata: {name: shop}\nspec:\n  port: 80\n  address: %s\n  traffic:\n", address)
		var revisions []service
		for i, percent := range percents {
			if percent < 0 {
				continue
			}
			r := version(fmt.Sprint("shop-v", i+1), fmt.Sprint(i+1))
			r.more = "balancing: {level: Request}"
			revisions = append(revisions, r)
			fmt.Fprintf(&traffic, "    - {revision: %s, percent: %d}\n", r.name, percent)
		}
		f.write(t, "shop.yaml", traffic.String()+manifest(revisions...))
	}
	answered := l.untilAnswered(address)
	apply(50, 50)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	load := l.load(t, address, newConnections, keptConnections)
	apply(20, 30, 50)
	eventually(t, "answers of version 3", func() bool { return load.Versions()["3"] > 0 })
	apply(0, 30, 70)
	load.GoesOn(t)
	apply(-1, 30, 70)
	l.untilGone(t, "shop-v1")
	before := load.Versions()["1"]
	load.GoesOn(t)
	apply(-1, 0, 100)
	load.GoesOn(t)
	apply(50, -1, 50) // one comes as another one goes
	eventually(t, "answers of version 1 again", func() bool { return load.Versions()["1"] > before })
	load.Stop(t)
}

// A revision is deleted while it gets requests. Its server ends at once when it is asked to.
func TestNoRequestIsLostWhenARevisionIsDeleted(t *testing.T) {
	const address = "10.46.100.78"
	l := newLab(t, 1)
	f := l.files(t)
	// apply divides the requests among some of the versions that there are.
	apply := func(traffic string, versions ...string) {
		doc := fmt.Sprintf("---\napiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\n"+
			"metadata: {name: shop}\nspec:\n  port: 80\n  address: %s\n  traffic:\n", address)
		for _, v := range traffic {
			doc += fmt.Sprintf("    - {revision: shop-v%c, percent: %d}\n", v, 100/len(traffic))
		}
		var revisions []service
		for _, v := range versions {
			r := version("shop-v"+v, v)
			r.more = "balancing: {level: Request}"
			revisions = append(revisions, r)
		}
		f.write(t, "shop.yaml", doc+manifest(revisions...))
	}
	apply("12", "1", "2")
	l.startWith(t, "", "-f", f.dir, "--envoy", envoytest.Path(t))
	l.awaitEnvoy(t)
	load := l.load(t, address, newConnections, keptConnections)
	for range 5 {
		before := load.Versions()["1"]
		eventually(t, "answers of version 1", func() bool { return load.Versions()["1"] > before+20 })
		apply("2", "2")
		l.untilGone(t, "shop-v1")
		load.GoesOn(t)
		apply("12", "1", "2")
	}
	load.Stop(t)

	// A revision that has lost its traffic still answers the requests that it has.
	goes := func(to string) {
		apply(to, "1", "2")
		eventually(t, "requests go to version "+to, func() bool {
			traffic := l.service(t, "shop").Service.Spec.Traffic
			return len(traffic) == 1 && traffic[0].Revision == "shop-v"+to
		})
	}
	goes("1")
	eventually(t, "Envoy sends requests to the pod of version 1, and no longer to its service address", func() bool {
		e2e.MustAsk(t, l.Client(), address)
		pods := l.service(t, "shop-v1").Pods
		return len(pods) == 1 && pods[0].Traffic.Requests > 0
	})
	answer := make(chan e2e.Answer, 1)
	client := e2e.HTTPClient(l.Client(), false)
	client.Timeout = e2e.Patience
	go func() {
		defer close(answer)
		a, err := e2e.ParseAnswer(e2e.Fetch(client, address, "/slow?for=6s"))
		if err != nil {
			t.Error(err)
		}
		answer <- a
	}()
	eventually(t, "version 1 has a request", func() bool {
		pods := l.service(t, "shop-v1").Pods
		return len(pods) == 1 && pods[0].Traffic.OpenRequests == 1
	})
	goes("2")
	apply("2", "2")
	l.untilGone(t, "shop-v1")
	if a := <-answer; a.Version != "1" {
		t.Errorf("the request of a revision that was deleted after its traffic: %+v", a)
	}
}
