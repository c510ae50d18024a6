// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/http"
	"net/http/httptrace"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
)

// shopOf is a service that splits its requests between v1 and v2.
const shopOf = `
apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata: {name: shop, namespace: split}
spec:
  port: 80
  balancing: {level: Request, protocol: HTTP1} # such clients keep their connections
  traffic: [{revision: v1, percent: 90}, {revision: v2, percent: 10, tag: canary}]
`

// split is a client of the service, with one connection.
type split struct {
	*testing.T
	client *http.Client
	addr   string
	local  string // the client's end of the connection
}

// ask sends a request, for a tag if there is one, and returns which revision answers.
func (s *split) ask(tag string) string {
	s.Helper()
	a, local := askOn(s.T, s.client, s.addr, "Wangell-Tag", tag)
	if s.local != "" && s.local != local {
		s.Errorf("the client has used another connection: %s, then %s", s.local, local)
	}
	s.local = local
	return a.Version
}

// count sends n requests and returns how many of them each revision answers.
func (s *split) count(n int) map[string]int {
	s.Helper()
	out := map[string]int{}
	for range n {
		out[s.ask("")]++
	}
	return out
}

// untilAll waits until a revision answers all requests.
func (s *split) untilAll(version string) {
	s.Helper()
	e2e.Eventually(s.T, version+" answers all requests", func() (bool, string) {
		got := s.count(20)
		return got[version] == 20, fmt.Sprint(got)
	})
}

// testTraffic splits the requests of one connection between two revisions, of which one sleeps, and moves them by
// kubectl wangell rollout.
func testTraffic(t *testing.T) {
	p := buildPlugin(t, lab.Kubeconfig)
	lab.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: split}\n")
	all := shopOf // first: its clients wait until the revisions are there
	for _, v := range []string{"v1", "v2"} {
		all += "---\n" + manifest("split/"+v, "idleTimeout: 600\nbalancing: {level: Request}\n"+
			"env: [{name: VERSION, value: "+v+"}]\n")
	}
	lab.apply(t, all)
	s := &split{T: t, client: e2e.OneConnection(lab.client), addr: lab.address(t, "split/shop")}
	t.Cleanup(s.client.CloseIdleConnections)
	if got := s.ask("canary"); got != "v2" { // it is woken
		t.Errorf("a request with a tag is answered by %s", got)
	}
	// Of 300 requests, 30 are expected, with a standard deviation of 5.
	if got := s.count(300); got["v2"] < 3 || got["v2"] > 75 || got["v1"]+got["v2"] != 300 {
		t.Errorf("with 90 and 10 percent: %v", got)
	}
	p.says(t, true, "sleep -n split v2")
	lab.waitState(t, "split/v2", "Cold")
	lab.waitState(t, "split/v1", "Warm") // it goes on while v2 sleeps
	if got := s.ask("canary"); got != "v2" {
		t.Errorf("a request with a tag is answered by %s, which slept", got)
	}
	p.says(t, true, "rollout promote -n split shop --percent 50", "v2 50")
	p.says(t, true, "rollout status -n split shop", "v1", "v2", "canary", "50")
	p.says(t, true, "rollout promote -n split shop")
	s.untilAll("v2")
	p.says(t, true, "sleep -n split v1")
	lab.waitState(t, "split/v1", "Cold")
	p.says(t, true, "rollout abort -n split shop")
	s.untilAll("v1") // which is woken
	s.losesNoneToDeletion(p)
}

// losesNoneToDeletion deletes v2 while it answers a request that takes longer than the notice that pods get of their
// end. Its server ends at once when it is asked to.
func (s *split) losesNoneToDeletion(p plugin) {
	s.Helper()
	const takes = 10 * time.Second
	p.says(s.T, true, "rollout promote -n split shop --percent 50", "v2 50")
	e2e.Eventually(s.T, "both revisions answer", func() (bool, string) {
		got := s.count(20)
		return got["v1"] > 0 && got["v2"] > 0, fmt.Sprint(got)
	})
	sent, answer := make(chan struct{}), make(chan e2e.Answer, 1)
	begun := sync.OnceFunc(func() { close(sent) })
	ctx := httptrace.WithClientTrace(s.Context(), &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { begun() },
	})
	go func() {
		defer close(answer)
		defer begun()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+"/slow?for="+takes.String(), nil)
		if err == nil {
			r.Header.Set("Wangell-Tag", "canary")
			var a e2e.Answer
			if a, err = answerTo(e2e.HTTPClient(lab.client, false), r); err == nil {
				answer <- a
				return
			}
		}
		s.Errorf("a request is lost: %v", err)
	}()
	<-sent
	e2e.Must(lab.kubectl("", "delete", "-n", "split", "wgs/v2", "--wait=false"))(s.T)
	for range 100 { // by one connection; each that fails ends the test
		s.ask("")
	}
	s.untilAll("v1")
	if a := <-answer; a.Version != "v2" {
		s.Errorf("the long request is answered by %q", a.Version)
	}
	e2e.Must(lab.kubectl("", "wait", "-n", "split", "wgs/v2", "--for=delete", "--timeout="+e2e.Patience.String()))(s.T)
}
