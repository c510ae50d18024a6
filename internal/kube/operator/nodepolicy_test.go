// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// Nodes alone may connect once sessions show that they come from where they are expected, and are never locked out.
func TestNodesAloneReachThePortsForDaemons(t *testing.T) {
	nodes := readNodes{
		"a": addrs("192.0.2.1", "10.244.0.0"), "b": addrs("192.0.2.2", "10.244.1.0"), "c": addrs("192.0.2.3"),
	}
	from := func(pairs ...string) map[string]netip.Addr {
		out := map[string]netip.Addr{}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i]] = netip.MustParseAddr(pairs[i+1])
		}
		return out
	}
	all := addrs("10.244.0.0", "10.244.1.0", "192.0.2.1", "192.0.2.2", "192.0.2.3")
	const soon, late = time.Second, nodePolicySettle
	two := from("a", "10.244.0.0", "b", "192.0.2.2")
	own := from("a", "192.0.2.1", "b", "192.0.2.2")
	odd, both := netip.MustParseAddr("198.51.100.9"), append(slices.Clone(all), netip.MustParseAddr("198.51.100.9"))
	single := readNodes{"c": nodes["c"]}
	keep, listed := nodeVerdict{keep: true}, nodeVerdict{addrs: all}
	for name, at := range map[string]struct {
		nodes    readNodes
		sessions map[string]netip.Addr
		cilium   bool
		led      time.Duration
		listed   []netip.Addr
		want     nodeVerdict
	}{
		"expected addresses":                {nodes, two, false, late, nil, listed},
		"a leader that has just begun":      {nodes, two, false, soon, nil, keep},
		"one daemon of three shows nothing": {nodes, from("a", "192.0.2.1"), false, late, nil, keep},
		"the only daemon of the only node": {single, from("c", "192.0.2.3"), false, late, nil,
			nodeVerdict{addrs: addrs("192.0.2.3")}},
		"Nodes that cannot be read":        {nil, from("a", "192.0.2.1"), false, late, all, keep},
		"another leader, no daemon yet":    {nodes, nil, false, soon, all, listed},
		"another leader, one that was odd": {nodes, nil, false, soon, []netip.Addr{odd}, nodeVerdict{addrs: both}},
		"that has not come back":           {nodes, own, false, late, []netip.Addr{odd}, listed},
		"all are locked out":               {nodes, nil, false, late, all, nodeVerdict{open: "no daemon connects"}},
		"nobody is expected":               {nodes, nil, false, late, nil, keep},
		"one of three is odd": {nodes, from("a", "192.0.2.1", "b", "192.0.2.2", "c", "198.51.100.9"), false, late, nil,
			nodeVerdict{addrs: both}},
		"most are odd": {nodes, from("a", "192.0.2.1", "b", "198.51.100.8", "c", "198.51.100.9"), false, late, all,
			nodeVerdict{open: "2 of 3 daemons connect from addresses that their Nodes do not show: " +
				"b at 198.51.100.8, c at 198.51.100.9"}},
		"a daemon whose Node was deleted": {nodes, from("a", "192.0.2.1", "b", "192.0.2.2", "gone", "198.51.100.9"), false,
			late, nil, listed},
		"Cilium, which knows nodes otherwise": {nodes, own, true, late, all,
			nodeVerdict{open: "Cilium does not match nodes by their addresses"}},
	} {
		got := judgeNodes(at.nodes, at.sessions, at.cilium, at.led, at.listed)
		if got.keep != at.want.keep || got.open != at.want.open || !slices.Equal(got.addrs, at.want.addrs) {
			t.Errorf("%s: %+v, want %+v", name, got, at.want)
		}
	}
	many := readNodes{}
	for i := range maxNodeBlocks + 1 {
		many[fmt.Sprint(i)] = []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
	}
	if got := judgeNodes(many, from("0", "10.0.0.0", "1", "10.0.0.1"), false, late, nil); got.open == "" {
		t.Errorf("a list of %d addresses", len(got.addrs))
	}
}

// Processes on a node connect to pods from its own address, from that of a tunnel or from that of a bridge.
func TestAddressesOfANodeAsPodsSeeThem(t *testing.T) {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{
			"projectcalico.org/IPv4VXLANTunnelAddr": "10.100.219.64", "unrelated": "10.9.9.9",
			"projectcalico.org/IPv4IPIPTunnelAddr": "no address",
		}},
		Spec: corev1.NodeSpec{PodCIDR: "10.244.3.0/24", PodCIDRs: []string{"10.244.3.0/24", "fd00:3::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.3"},
			{Type: corev1.NodeExternalIP, Address: "198.51.100.3"},
		}},
	}
	small, err := trimNode(n.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	want := addrs("192.0.2.3", "10.244.3.0", "10.244.3.1", "fd00:3::", "fd00:3::1", "10.100.219.64")
	for _, n := range []*corev1.Node{n, small.(*corev1.Node)} {
		if got := nodeSources(n); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	for i := range 100 { // kubelet may say what it likes
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{
			Type: corev1.NodeInternalIP, Address: fmt.Sprintf("203.0.113.%d", i),
		})
	}
	if got := nodeSources(n); len(got) != maxNodeSources {
		t.Errorf("a Node has %d addresses", len(got))
	}
}

// nodesPolicy is a NetworkPolicy as the chart has it.
func nodesPolicy(namespace string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nodes", Labels: map[string]string{"chart": "1"}},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		},
	}
}

// What helm and kubectl apply do to the NetworkPolicy leaves the rules that the leader keeps.
func TestUpgradesOfTheChartDoNotLockNodesOut(t *testing.T) {
	w := newWorld(t, nil)
	client, err := kubernetes.NewForConfig(w.config)
	if err != nil {
		t.Fatal(err)
	}
	policies := client.NetworkingV1().NetworkPolicies(w.namespace)
	from := map[string]netip.Addr{"a": netip.MustParseAddr("192.0.2.1"), "b": netip.MustParseAddr("192.0.2.2")}
	p := &nodePolicy{
		client: client, at: Name{w.namespace, "nodes"}, log: slog.New(slog.DiscardHandler),
		sessions: func() map[string]netip.Addr { return from },
	}
	if err := p.prepare(t.Context()); err != nil {
		t.Fatalf("without the object: %v", err)
	}
	old := nodesPolicy(w.namespace)
	if _, err := policies.Create(t.Context(), old, metav1.CreateOptions{FieldManager: "helm"}); err != nil {
		t.Fatal(err)
	}
	rules := func() []networkingv1.NetworkPolicyIngressRule {
		t.Helper()
		there, err := policies.Get(t.Context(), "nodes", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return there.Spec.Ingress
	}
	if err := p.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := rules(); len(got) != 1 || len(got[0].From) != 0 || len(got[0].Ports) != 2 {
		t.Fatalf("before any daemon has connected: %+v", got)
	}
	var nodes []any
	for name, a := range from {
		nodes = append(nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: a.String()}}},
		})
	}
	if err := p.renew(t.Context(), nodes, nodePolicySettle); err != nil {
		t.Fatal(err)
	}
	listed := func(when string) {
		t.Helper()
		if got := listedIn(rules()); !slices.Equal(got, addrs("192.0.2.1", "192.0.2.2")) {
			t.Fatalf("%s: %v may connect", when, got)
		}
	}
	listed("with two daemons")
	if err := p.prepare(t.Context()); err != nil { // the next leader
		t.Fatal(err)
	}
	listed("under the next leader")
	upgraded := nodesPolicy(w.namespace)
	upgraded.Labels["chart"] = "2"
	w.threeWay(policies, old, upgraded)
	listed("after helm upgrade")
	again, err := json.Marshal(upgraded)
	if err != nil {
		t.Fatal(err)
	}
	force := true
	if _, err := policies.Patch(t.Context(), "nodes", types.ApplyPatchType, again,
		metav1.PatchOptions{FieldManager: "helm", Force: &force}); err != nil {
		t.Fatal(err)
	}
	listed("after a server-side apply")
	there, err := policies.Get(t.Context(), "nodes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own := slices.IndexFunc(there.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == "wangell-nodes"
	})
	if own < 0 || strings.Contains(there.ManagedFields[own].FieldsV1.GetRawString(), "podSelector") {
		t.Errorf("managers: %+v", there.ManagedFields)
	}
}

// policyClient is what threeWay needs.
type policyClient interface {
	Get(context.Context, string, metav1.GetOptions) (*networkingv1.NetworkPolicy, error)
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (
		*networkingv1.NetworkPolicy, error)
}

// threeWay changes an object as helm upgrade and kubectl apply do: by a patch of what has changed between two
// manifests, and of what differs from the new one.
func (w *world) threeWay(c policyClient, before, after *networkingv1.NetworkPolicy) {
	w.t.Helper()
	there, err := c.Get(w.t.Context(), after.Name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var texts [3][]byte
	for i, o := range []any{before, after, there} {
		if texts[i], err = json.Marshal(o); err != nil {
			w.t.Fatal(err)
		}
	}
	schema, err := strategicpatch.NewPatchMetaFromStruct(after)
	if err != nil {
		w.t.Fatal(err)
	}
	patch, err := strategicpatch.CreateThreeWayMergePatch(texts[0], texts[1], texts[2], schema, true)
	if err != nil {
		w.t.Fatal(err)
	}
	by := metav1.PatchOptions{FieldManager: "helm"}
	if _, err = c.Patch(w.t.Context(), after.Name, types.StrategicMergePatchType, patch, by); err != nil {
		w.t.Fatal(err)
	}
}

// A leader lets everybody in from its start on, while it does not know better.
func TestALeaderKeepsTheRulesForNodes(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.NodePolicy = Name{c.Namespace, "nodes"} })
	w.create(nodesPolicy(w.namespace))
	w.run()
	w.until("everybody may connect, as no daemon has shown yet where it is", func() bool {
		var p networkingv1.NetworkPolicy
		return w.get("nodes", &p) && len(p.Spec.Ingress) == 1 && len(p.Spec.Ingress[0].From) == 0
	})
}
