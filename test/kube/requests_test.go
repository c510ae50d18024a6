// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// envoys returns the pods of Envoy by their addresses.
func (c *cluster) envoys(t *testing.T) map[netip.Addr]*corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	selector := client.MatchingLabels{"app.kubernetes.io/component": "envoy"}
	if err := c.api.List(t.Context(), &pods, client.InNamespace(productNamespace), selector); err != nil {
		t.Fatal(err)
	}
	out := map[netip.Addr]*corev1.Pod{}
	for i := range pods.Items {
		if a, err := netip.ParseAddr(pods.Items[i].Status.PodIP); err == nil {
			out[a] = &pods.Items[i]
		}
	}
	return out
}

// askFor sends n requests by a client and returns how many each instance has answered.
func askFor(t *testing.T, c *http.Client, address string, n int) (counts map[string]int, last e2e.Answer) {
	t.Helper()
	counts = map[string]int{}
	for range n {
		var err error
		if last, err = e2e.AskBy(c, address); err != nil {
			t.Fatal(err)
		}
		counts[last.Instance]++
	}
	return counts, last
}

// untilFronted waits until the requests of one connection reach several pods, and returns the connection's client and
// the last answer.
func untilFronted(t *testing.T, from *netlab.Namespace, address string, pods int) (*http.Client, e2e.Answer) {
	t.Helper()
	var c *http.Client
	var last e2e.Answer
	e2e.Eventually(t, from.Name+": Envoy balances requests", func() (bool, string) {
		var counts map[string]int
		c = e2e.HTTPClient(from, true)
		if counts, last = askFor(t, c, address, 10*pods); len(counts) == pods {
			return true, ""
		}
		c.CloseIdleConnections()
		return false, fmt.Sprint(counts)
	})
	t.Cleanup(c.CloseIdleConnections)
	return c, last
}

// testRequests sends requests to a service that balances them: from outside, from nodes and from pods, by the service
// address and by the ClusterIP, while Envoy works, is killed and hangs.
func testRequests(t *testing.T) {
	const key, pods = "default/requests", 3
	lab.apply(t, strings.Replace(spread(key, "balancing: {level: Request}\n"), "value: lines", "value: http", 1))
	addr := lab.address(t, key)
	lab.scaled(t, key, pods)
	envoys := lab.envoys(t)
	if len(envoys) != len(lab.nodes) {
		t.Fatalf("%d Envoys on %d nodes", len(envoys), len(lab.nodes))
	}
	lab.apply(t, clientPod("requester", lab.nodes[len(lab.nodes)-1]))
	e2e.Must(lab.kubectl("", "wait", "-n", "default", "pod/requester", "--for=condition=Ready",
		"--timeout="+e2e.Patience.String()))(t)
	pod := lab.podNamespace(t, "default", "requester")
	from := []*netlab.Namespace{lab.client, pod}
	for _, n := range lab.nodes {
		from = append(from, n.ns)
	}
	seen := map[netip.Addr]bool{}
	for _, ns := range from {
		c, last := untilFronted(t, ns, addr, pods)
		if envoys[last.ClientAddr()] == nil {
			t.Errorf("%s: the pod's client is %s, no Envoy", ns.Name, last.Client)
		}
		seen[last.ClientAddr()] = true
		const each = 100
		counts, _ := askFor(t, c, addr, each*pods)
		for instance, n := range counts { // they take turns
			if n < each*4/5 || n > each*6/5 {
				t.Errorf("%s: %s answered %d of %d requests", ns.Name, instance, n, each*pods)
			}
		}
	}
	if len(seen) != len(lab.nodes) {
		t.Errorf("clients of %d nodes had only these Envoys: %v", len(lab.nodes), seen)
	}

	t.Run("a kept connection outlives a sleep", testKeptConnection)
	t.Run("requests are split among revisions", testTraffic)

	t.Run("an update of Envoy loses no request", func(t *testing.T) { testEnvoyUpdate(t, addr, from) })
	envoys = lab.envoys(t)

	// The client outside has one of the Envoys. Its end is not the end of the service.
	c, last := untilFronted(t, lab.client, addr, pods)
	c.CloseIdleConnections()
	stop := lab.signalEnvoy(t, envoys[last.ClientAddr()], syscall.SIGSTOP)
	e2e.Eventually(t, "a pod answers while Envoy hangs", func() (bool, string) {
		c := e2e.HTTPClient(lab.client, false)
		c.Timeout = time.Second
		a, err := e2e.AskBy(c, addr)
		return err == nil && envoys[a.ClientAddr()] == nil, fmt.Sprint(a, err)
	})
	if err := syscall.Kill(stop, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	_, last = untilFronted(t, lab.client, addr, pods)
	pid := lab.signalEnvoy(t, envoys[last.ClientAddr()], syscall.SIGKILL)
	e2e.Eventually(t, "Envoy has ended", func() (bool, string) { return syscall.Kill(pid, 0) != nil, "" })
	for range 20 {
		e2e.MustAsk(t, lab.client, addr)
	}
	untilFronted(t, lab.client, addr, pods)
}

// testEnvoyUpdate replaces all Envoys while clients on the nodes, in pods and outside send requests.
func testEnvoyUpdate(t *testing.T, addr string, from []*netlab.Namespace) {
	var clients []e2e.Client
	for _, ns := range from {
		clients = append(clients, e2e.Client{From: ns, Keep: true, Pause: 20 * time.Millisecond},
			e2e.Client{From: ns, Pause: 50 * time.Millisecond})
	}
	before := lab.envoys(t)
	load := e2e.StartLoad(t, addr, clients...)
	e2e.Must(lab.kubectl("", "rollout", "restart", "-n", productNamespace, "daemonset/wangell-envoy"))(t)
	e2e.Must(lab.kubectl("", "rollout", "status", "-n", productNamespace, "daemonset/wangell-envoy",
		"--timeout="+e2e.Patience.String()))(t)
	e2e.Eventually(t, "the Envoys before have ended", func() (bool, string) {
		after := lab.envoys(t)
		for a := range after {
			if before[a] != nil {
				return false, before[a].Name
			}
		}
		return len(after) == len(lab.nodes), fmt.Sprint(len(after))
	})
	load.GoesOn(t)
	load.Stop(t)
	for _, ns := range from {
		untilFronted(t, ns, addr, 3)
	}
}

// signalEnvoy sends a signal to the process of an Envoy and returns its number.
func (c *cluster) signalEnvoy(t *testing.T, pod *corev1.Pod, s syscall.Signal) int {
	t.Helper()
	if pod == nil {
		t.Fatal("the client has no Envoy")
	}
	pid, err := processOf(string(pod.UID), "envoy\x00")
	if err == nil {
		err = syscall.Kill(pid, s)
	}
	if err != nil {
		t.Fatalf("Envoy of %s: %v", pod.Name, err)
	}
	return pid
}

// askOn is e2e.AskBy with the client's end of the connection, and with headers, given as pairs.
func askOn(t *testing.T, c *http.Client, address string, headers ...string) (a e2e.Answer, local string) {
	t.Helper()
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { local = i.Conn.LocalAddr().String() }}
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet,
		"http://"+address+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	return e2e.Must(answerTo(c, r))(t), local
}

// answerTo sends a request and returns the answer.
func answerTo(c *http.Client, r *http.Request) (e2e.Answer, error) {
	response, err := c.Do(r)
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

// testKeptConnection has a client that keeps its connection while the service sleeps. A NetworkPolicy admits that
// client alone, and Envoy to the pods where the CNI plugin enforces policies.
func testKeptConnection(t *testing.T) {
	const namespace, key = "kept", "kept/shop"
	lab.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n")
	rule := fmt.Sprintf("{ipBlock: {cidr: %s/32}}", lab.Client.IP)
	if lab.CNI == "cilium" {
		rule += ", {namespaceSelector: {}, podSelector: {matchLabels: {app.kubernetes.io/component: envoy}}}"
	}
	lab.apply(t, fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"+
		"metadata: {name: clients, namespace: %s}\nspec:\n  podSelector: {}\n  policyTypes: [Ingress]\n"+
		"  ingress: [{from: [%s]}]\n", namespace, rule))
	lab.apply(t, manifest(key, "idleTimeout: 3\nbalancing: {level: Request}\n"))
	addr := lab.address(t, key)
	envoys := lab.envoys(t)
	c := e2e.OneConnection(lab.client)
	t.Cleanup(c.CloseIdleConnections)
	var last e2e.Answer
	var connection string
	e2e.Eventually(t, "Envoy is the front", func() (bool, string) {
		c.CloseIdleConnections()
		last, connection = askOn(t, c, addr)
		return envoys[last.ClientAddr()] != nil, last.Client
	})
	ask := func() (same bool) {
		a, local := askOn(t, c, addr)
		if local != connection {
			t.Errorf("the client has used another connection: %s, then %s", connection, local)
		}
		same = a.Instance == last.Instance
		last = a
		return same
	}
	// Requests are use, on whichever node the pod is.
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		if !ask() {
			t.Error("it slept between requests")
		}
	}
	for range 2 {
		lab.waitCold(t, key)
		if ask() {
			t.Errorf("the same process, %s, answers after a sleep", last.Instance)
		}
	}
	for _, n := range lab.nodes {
		if err := connect(n.ns, addr, silence); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s, denied: %v", n.name, err)
		}
	}
}
