// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

const (
	// silence is how long a client waits before it counts as denied. Linux repeats a SYN after one second.
	silence = 1500 * time.Millisecond
	// glance is that of a client that asks again and again until a change is in force.
	glance = 200 * time.Millisecond
)

// testPolicies applies NetworkPolicies to the pods of a service. Where the CNI plugin enforces none, what is denied is
// denied by the gate: for the sleeping service and for the one that runs, at every node.
func testPolicies(t *testing.T) {
	const namespace, key = "policed", "policed/shop"
	lab.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n")
	pod := func(name string, n *node) string {
		return strings.Replace(clientPod(name, n), "namespace: default", "namespace: "+namespace, 1) + "---\n"
	}
	lab.apply(t, pod("friend", lab.nodes[0])+pod("stranger", lab.nodes[1])+allowIngress("deny-all", "{}", ""))
	e2e.Must(lab.kubectl("", "label", "pod", "-n", namespace, "friend", "role=client"))(t)
	friends := allowIngress("friends", "{matchLabels: {wangell.loutres.me/service: shop}}",
		"  - from: [{podSelector: {matchLabels: {role: client}}}]\n    ports: [{port: 8080}]\n")
	e2e.Must(lab.kubectl(friends, "apply", "-f", "-"))(t)
	e2e.Must(lab.kubectl("", "wait", "-n", namespace, "pod/friend", "pod/stranger", "--for=condition=Ready",
		"--timeout="+e2e.Patience.String()))(t)
	friend, stranger := lab.podNamespace(t, namespace, "friend"), lab.podNamespace(t, namespace, "stranger")

	lab.apply(t, manifest(key, "idleTimeout: 600"))
	addr := lab.address(t, key)
	e2e.Eventually(t, "the condition names the policies", func() (bool, string) {
		c := meta.FindStatusCondition(lab.get(t, key).Status.Conditions, v1alpha1.ConditionRestricted)
		return c != nil && c.Reason == "NetworkPolicy" && strings.Contains(c.Message, "deny-all, friends"), fmt.Sprint(c)
	})
	for _, from := range []*netlab.Namespace{stranger, lab.client} {
		if err := connect(from, addr, silence); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s, denied, asks the sleeping service: %v", from.Name, err)
		}
	}
	if p := lab.pods(t, key); len(p) > 0 {
		t.Errorf("denied clients have woken it: %v", p)
	}
	e2e.MustAsk(t, friend, addr)
	for _, from := range []*netlab.Namespace{stranger, lab.client} {
		if err := connect(from, addr, silence); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s, denied, asks the service that runs: %v", from.Name, err)
		}
	}

	open := e2e.HTTPClient(friend, true)
	before, err := e2e.AskBy(open, addr)
	if err != nil {
		t.Fatal(err)
	}
	follows := func(change string, from *netlab.Namespace, allowed bool) {
		e2e.Eventually(t, change, func() (bool, string) {
			err := connect(from, addr, glance)
			return (err == nil) == allowed, fmt.Sprint(err)
		})
		if err := connect(from, addr, silence); (err == nil) != allowed {
			t.Errorf("%s, and then: %v", change, err)
		}
	}
	e2e.Must(lab.kubectl("", "label", "pod", "-n", namespace, "stranger", "role=client"))(t)
	follows("a pod that gets the label is let in", stranger, true)
	e2e.Must(lab.kubectl(strings.Replace(friends, "port: 8080", "port: 9090", 1), "apply", "-f", "-"))(t)
	follows("a policy for another port denies", friend, false)
	if after, err := e2e.AskBy(open, addr); err != nil || after.Client != before.Client {
		t.Errorf("a connection that was open before its client was denied: %v, %v", after, err)
	}
	outside := strings.Replace(friends, "{podSelector: {matchLabels: {role: client}}}",
		"{ipBlock: {cidr: "+lab.Client.IP+"/32}}", 1)
	e2e.Must(lab.kubectl(outside, "apply", "-f", "-"))(t)
	follows("a host of an ipBlock is let in", lab.client, true)
	if err := connect(stranger, addr, silence); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a pod outside of the ipBlock: %v", err)
	}
	testPolicySpeed(t, addr)
	e2e.Must(lab.kubectl("", "delete", "networkpolicy", "-n", namespace, "--all"))(t)
	follows("without policies every pod is let in", stranger, true)
}

// allowIngress is a NetworkPolicy of the namespace "policed".
func allowIngress(name, pods, rules string) string {
	return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: policed}\n"+
		"spec:\n  podSelector: %s\n  policyTypes: [Ingress]\n  ingress:%s\n", name, pods,
		map[bool]string{true: " []", false: "\n" + strings.TrimRight(rules, "\n")}[rules == ""])
}

// connect makes one connection, and gives up after a while.
func connect(from *netlab.Namespace, address string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := from.Dialer().DialContext(ctx, "tcp4", address)
	if err == nil {
		return c.Close()
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("%w: %w", os.ErrDeadlineExceeded, err)
	}
	return err
}
