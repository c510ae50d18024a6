// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// on is the manifest of a service whose pods are pinned to a node by a pod template.
func on(n *node, key string) string {
	template := fmt.Sprintf("template:\n  spec:\n    nodeSelector: {kubernetes.io/hostname: %s}\n    containers:\n"+
		"    - {name: server, image: %q}\n", n.name, serverImage)
	return strings.Replace(manifest(key, "idleTimeout: 600\n"+template), "  image: "+serverImage+"\n", "", 1)
}

// testManifest applies the minimal manifest.
func testManifest(t *testing.T) {
	doc, err := os.ReadFile("testdata/manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const key = "default/serverless-example"
	lab.apply(t, string(doc))
	addr := lab.address(t, key)
	lab.waitCold(t, key)
	_, cold := timedAsk(t, lab.client, addr)
	lab.waitState(t, key, "Warm")
	_, warm := timedAsk(t, lab.client, addr)
	t.Logf("cold %v, warm %v", cold, warm)
	e2e.Eventually(t, "the status of a warm service", func() (bool, string) {
		s := lab.get(t, key)
		return s.Status.Replicas == 1 && s.Status.LatestRequest != nil, fmt.Sprintf("%+v", s.Status)
	})
	table := e2e.Must(lab.kubectl("", "get", "wgs", "-n", "default", "serverless-example"))(t)
	for _, column := range []string{"ADDRESS", "REPLICAS", "STATE", "LAST REQUEST", "AGE"} {
		if !strings.Contains(table, column) {
			t.Errorf("no column %s in\n%s", column, table)
		}
	}
	t.Logf("kubectl get wgs\n%s", table)
}

// testEverywhere wakes and uses a service from all kinds of clients, by address and by name, with its pod on the same
// node and elsewhere. The pod must see their addresses.
func testEverywhere(t *testing.T) {
	here, elsewhere := lab.nodes[0], lab.nodes[1]
	lab.apply(t, clientPod("here", here)+"---\n"+clientPod("elsewhere", elsewhere))
	e2e.Must(lab.kubectl("", "wait", "-n", "default", "pod/here", "pod/elsewhere", "--for=condition=Ready",
		"--timeout="+e2e.Patience.String()))(t)
	const key = "default/everywhere"
	lab.apply(t, on(here, key))
	vip := lab.address(t, key)
	// The cluster's DNS has the Service after a while, which the product has no part in.
	var name netip.Addr
	e2e.Eventually(t, "the name is known", func() (bool, string) {
		var err error
		name, err = lab.resolve(lab.podNamespace(t, "default", "here"), "everywhere.default.svc.cluster.local")
		return err == nil, fmt.Sprint(err)
	})
	for _, n := range []*node{here, elsewhere} {
		awaitProxy(t, n.ns, netip.AddrPortFrom(name, 80).String())
	}
	clients := []struct {
		name string
		from *netlab.Namespace
		ip   netip.Addr
		pod  *node // the node of a pod
	}{
		{"outside", lab.client, netip.MustParseAddr(lab.Client.IP), nil},
		{"pod on the node", lab.podNamespace(t, "default", "here"), podIP(t, "here"), here},
		{"pod elsewhere", lab.podNamespace(t, "default", "elsewhere"), podIP(t, "elsewhere"), elsewhere},
		{"the node itself", here.ns, here.ip, nil},
		{"another node", elsewhere.ns, elsewhere.ip, nil},
	}
	for _, c := range clients {
		for _, to := range []struct{ how, address string }{{"address", vip},
			{"name", netip.AddrPortFrom(name, 80).String()}} {
			if c.name == "outside" && to.how == "name" {
				continue // ClusterIPs only work in the cluster
			}
			t.Run(c.name+" by "+to.how, func(t *testing.T) {
				lab.sleep(t, key)
				before := 0
				if c.pod != nil {
					before = c.pod.shortcuts(t)
				}
				a, cold := timedAsk(t, c.from, to.address)
				b, warm := timedAsk(t, c.from, to.address)
				if c.pod != nil && to.how == "address" && c.pod.shortcuts(t) < before+2 {
					t.Error("the pod's connections did not take the shortcut")
				}
				t.Logf("cold %v, warm %v; the pod sees %v", cold, warm, a.ClientAddr())
				if a.Instance != b.Instance {
					t.Errorf("two pods answered: %s and %s", a.Instance, b.Instance)
				}
				// A host has several addresses, and may use that of another device for a service address.
				if a.ClientAddr() != c.ip && !strings.Contains(c.name, "node") {
					t.Errorf("the pod sees %v, the client is %v", a.ClientAddr(), c.ip)
				}
			})
		}
	}

	t.Run("its own pod", func(t *testing.T) {
		e2e.MustAsk(t, lab.client, vip)
		pods := lab.pods(t, key)
		if len(pods) != 1 {
			t.Fatalf("pods %v", pods)
		}
		own := lab.podNamespace(t, "default", pods[0])
		for _, address := range []string{vip, netip.AddrPortFrom(name, 80).String()} {
			a := e2e.MustAsk(t, own, address)
			t.Logf("at %s, the pod sees %v", address, a.ClientAddr())
			if address == vip && !netip.MustParsePrefix("240.0.0.0/4").Contains(a.ClientAddr()) {
				t.Errorf("the pod sees itself as %v", a.ClientAddr())
			}
		}
	})
}

// clientPod is a pod whose network the tests use.
func clientPod(name string, n *node) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: default}\nspec:\n  nodeName: %s\n"+
		"  terminationGracePeriodSeconds: 0\n  automountServiceAccountToken: false\n"+
		"  containers: [{name: client, image: %q}]\n",
		name, n.name, serverImage)
}

func podIP(t *testing.T, name string) netip.Addr {
	t.Helper()
	return netip.MustParseAddr(e2e.Must(lab.kubectl("", "get", "pod", "-n", "default", name, "-o",
		"jsonpath={.status.podIP}"))(t))
}

// testIdle lets a service fall asleep, and wakes it again.
func testIdle(t *testing.T) {
	const key = "default/idle"
	lab.apply(t, manifest(key, "idleTimeout: 2"))
	addr := lab.address(t, key)
	lab.waitCold(t, key)
	first := e2e.MustAsk(t, lab.client, addr)
	// Not Warm and then Cold: it is warm for only two seconds, which may pass between two looks. With the time of the last
	// request, the status is known to be a later one.
	e2e.Eventually(t, "asleep again", func() (bool, string) {
		s, p := lab.get(t, key), lab.pods(t, key)
		return s.Status.State == "Cold" && s.Status.LatestRequest != nil && s.Status.Replicas == 0 &&
			len(p) == 0, fmt.Sprintf("%+v; pods %s", s.Status, strings.Join(p, " "))
	})
	second := e2e.MustAsk(t, lab.client, addr)
	if first.Instance == second.Instance {
		t.Error("the same process answered")
	}
}

// handedOver is the summary of the Deployment of a service with one pod.
const handedOver = "paused= wants=1 has=1 sets=1"

// testHandedOver checks that the pod of a wake ends up in a Deployment like any other: it can be rolled out, and is
// replaced when lost. No other pod is created on the way, and while the service sleeps the Deployment is at rest.
func testHandedOver(t *testing.T) {
	const key, name = "default/handed", "handed"
	lab.apply(t, manifest(key, ""))
	addr := lab.address(t, key)
	lab.waitCold(t, key)
	atRest := func() {
		t.Helper()
		lab.waitDeployment(t, key, "paused=true wants=0 has= sets=0")
	}
	atRest()
	created := 0
	for range 3 {
		e2e.MustAsk(t, lab.client, addr)
		woken := lab.pods(t, key)
		lab.waitDeployment(t, key, handedOver)
		if now := lab.pods(t, key); len(woken) != 1 || len(now) != 1 || now[0] != woken[0] {
			t.Errorf("pods %v became %v", woken, now)
		}
		owner := e2e.Must(lab.kubectl("", "get", "pod", "-n", "default", woken[0], "-o",
			`jsonpath={.metadata.ownerReferences[?(@.controller==true)].kind}`))(t)
		if owner != "ReplicaSet" {
			t.Errorf("pod %s is controlled by a %q", woken[0], owner)
		}
		lab.sleep(t, key)
		atRest()
		created++
	}
	// Kubernetes has an event for every scheduled pod.
	scheduled := strings.Fields(e2e.Must(lab.kubectl("", "get", "events", "-n", "default", "--field-selector",
		"reason=Scheduled", "-o",
		`jsonpath={range .items[*]}{.involvedObject.name}{.regarding.name}{"\n"}{end}`))(t))
	n := 0
	for _, pod := range scheduled {
		if strings.HasPrefix(pod, name+"-") {
			n++
		}
	}
	if n != created {
		t.Errorf("%d wakes made %d pods", created, n)
	}

	e2e.MustAsk(t, lab.client, addr)
	lab.waitDeployment(t, key, handedOver)
	before := lab.pods(t, key)
	if err := rollOut(t.Context(), name, 0); err != nil {
		t.Fatal(err)
	}
	e2e.Eventually(t, key+": another pod", func() (bool, string) {
		now := lab.pods(t, key)
		return len(now) == 1 && now[0] != before[0], strings.Join(now, " ")
	})
	e2e.Must(lab.kubectl("", append([]string{"delete", "pod", "-n", "default"}, lab.pods(t, key)...)...))(t)
	e2e.MustAsk(t, lab.client, addr)
	lab.sleep(t, key)
	atRest()
}

// testSameName has two services of the same name in two namespaces.
func testSameName(t *testing.T) {
	lab.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n")
	const a, b = "default/twin", "other/twin"
	lab.apply(t, manifest(a, "env: [{name: VERSION, value: a}]"))
	lab.apply(t, manifest(b, "env: [{name: VERSION, value: b}]"))
	for key, version := range map[string]string{a: "a", b: "b"} {
		if got := e2e.MustAsk(t, lab.client, lab.address(t, key)); got.Version != version {
			t.Errorf("%s: version %q answers, want %q", key, got.Version, version)
		}
	}
}

// testNewNamespace wakes a service in a namespace that has no service account yet: Kubernetes, which creates it, is
// kept from that until the first client waits.
func testNewNamespace(t *testing.T) {
	const key, binding = "fresh/app", "system:controller:service-account-controller"
	e2e.Must(lab.kubectl("", "delete", "clusterrolebinding", binding))(t)
	restore := func() (string, error) {
		return lab.kubectl(fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: %[1]s
  labels: {kubernetes.io/bootstrapping: rbac-defaults}
  annotations: {rbac.authorization.kubernetes.io/autoupdate: "true"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{kind: ServiceAccount, name: service-account-controller, namespace: kube-system}]
`, binding), "apply", "-f", "-")
	}
	t.Cleanup(func() { e2e.Must(restore())(t) })
	lab.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: fresh}\n---\n"+manifest(key, ""))
	addr := lab.address(t, key)
	got := make(chan error, 1)
	go func() {
		_, err := e2e.Ask(lab.client, addr)
		got <- err
	}()
	e2e.Eventually(t, "an event tells that the start is tried again", func() (bool, string) {
		events := lab.eventsOf(t, key)
		return strings.Contains(events, "tried again") && strings.Contains(events, "service account"), events
	})
	e2e.Must(restore())(t)
	if err := <-got; err != nil {
		t.Errorf("the client that came before the service account: %v", err)
	}
}

// testChange changes image, port and target port under load.
func testChange(t *testing.T) {
	const key = "default/change"
	lab.apply(t, manifest(key, "idleTimeout: 600\nenv: [{name: VERSION, value: one}]"))
	addr := lab.address(t, key)
	e2e.MustAsk(t, lab.client, addr)
	tr := keepAsking(t, lab.client, addr)
	e2e.Eventually(t, "version one", func() (bool, string) {
		seen := tr.Versions()
		return seen["one"] > 0,
			fmt.Sprint(seen)
	})
	change := func(version, doc string) {
		t.Helper()
		e2e.Must(lab.kubectl(doc, "apply", "-f", "-"))(t)
		e2e.Eventually(t, "version "+version, func() (bool, string) {
			seen := tr.Versions()
			return seen[version] > 0, fmt.Sprint(seen)
		})
	}
	change("two", manifest(key, "idleTimeout: 600\nenv: [{name: VERSION, value: two}]"))
	change("three", strings.Replace(manifest(key,
		"idleTimeout: 600\nenv: [{name: VERSION, value: three}, {name: PORT, value: '9090'}]"),
		"targetPort: 8080", "targetPort: 9090", 1))
	change("of the image", strings.Replace(manifest(key, "idleTimeout: 600"), serverImage, otherImage, 1))
	tr.Stop(t)
	if seen := tr.Versions(); len(seen) != 4 {
		t.Errorf("answers by version: %v", seen)
	}
	// The port of the service address changes: the old one is closed, the new one answers.
	e2e.Must(lab.kubectl(strings.Replace(manifest(key, "idleTimeout: 600"), "port: 80\n", "port: 81\n", 1), "apply", "-f",
		"-"))(t)
	moved := netip.AddrPortFrom(netip.MustParseAddrPort(addr).Addr(), 81).String()
	e2e.Eventually(t, "the new port answers", func() (bool, string) {
		_, err := e2e.Ask(lab.client, moved)
		return err == nil, fmt.Sprint(err)
	})
	e2e.Eventually(t, "the old port is closed", func() (bool, string) {
		_, err := e2e.Ask(lab.client, addr)
		return err != nil, "it answers"
	})
}

// testDeleteParked deletes a service while a client waits for it.
func testDeleteParked(t *testing.T) {
	const key = "default/gone"
	lab.apply(t, manifest(key, "env: [{name: MODE, value: deaf}]"))
	addr := lab.address(t, key)
	refused := make(chan error, 1)
	go func() {
		_, err := e2e.Ask(lab.client, addr)
		refused <- err
	}()
	lab.waitState(t, key, "Waking")
	e2e.Must(lab.kubectl("", "delete", "wgs", "-n", "default", "gone"))(t)
	select {
	case err := <-refused:
		if err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("the client got %v, want: connection refused", err)
		}
	case <-time.After(e2e.Patience):
		t.Error("the client still waits")
	}
}

// testUnschedulable starts a pod that fits on no node.
func testUnschedulable(t *testing.T) {
	const key = "default/huge"
	lab.apply(t, manifest(key, "wakeTimeout: 10\nresources: {requests: {memory: 500Ti}}"))
	addr := lab.address(t, key)
	begin := time.Now()
	_, err := e2e.Ask(lab.client, addr)
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Fatalf("the client got %v, want: connection refused", err)
	}
	t.Logf("refused after %v", time.Since(begin))
	e2e.Eventually(t, "failed, and why", func() (bool, string) {
		s := lab.get(t, key)
		return s.Status.State == "Failed" && strings.Contains(s.Status.Message, "Insufficient memory"), fmt.Sprintf("%+v",
			s.Status)
	})
	e2e.Eventually(t, "no pod is left", func() (bool, string) {
		p := lab.pods(t, key)
		return len(p) == 0,
			strings.Join(p, " ")
	})
}

// testScale changes the number of pods as kubectl, HPA and KEDA do.
func testScale(t *testing.T) {
	const key = "default/many"
	lab.apply(t, manifest(key, "idleTimeout: 600\nmaxReplicas: 3"))
	addr := lab.address(t, key)
	e2e.Must(lab.kubectl("", "scale", "wgs", "-n", "default", "many", "--replicas=3"))(t)
	e2e.Eventually(t, "three pods", func() (bool, string) {
		s := lab.get(t, key)
		return s.Status.Replicas == 3 && s.Status.State == "Warm", fmt.Sprintf("%+v", s.Status)
	})
	// The status may have a pod before all gates have it.
	instances := map[string]int{}
	e2e.Eventually(t, "all three answer", func() (bool, string) {
		a := e2e.MustAsk(t, lab.client, addr)
		instances[a.Instance]++
		return len(instances) == 3, fmt.Sprint(instances)
	})
	tr := keepAsking(t, lab.client, addr)
	e2e.Must(lab.kubectl("", "scale", "wgs", "-n", "default", "many", "--replicas=1"))(t)
	e2e.Eventually(t, "one pod", func() (bool, string) { p := lab.pods(t, key); return len(p) == 1, strings.Join(p, " ") })
	tr.Stop(t)
	lab.sleep(t, key)
	e2e.MustAsk(t, lab.client, addr)
}
