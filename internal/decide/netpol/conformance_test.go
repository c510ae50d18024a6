// SPDX-License-Identifier: Apache-2.0

package netpol

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// model is the cluster of the upstream conformance tests: namespaces x, y and z with pods a, b and c, each labelled
// with its name. 192.0.2.1 is outside of the cluster.
type model struct {
	namespaces map[string]labels.Set
	pods       map[string]labels.Set // by "namespace/pod"
}

func newModel() model {
	m := model{map[string]labels.Set{}, map[string]labels.Set{}}
	for _, ns := range []string{"x", "y", "z"} {
		m.namespaces[ns] = labels.Set{"ns": ns, "kubernetes.io/metadata.name": ns}
		for _, pod := range []string{"a", "b", "c"} {
			m.pods[ns+"/"+pod] = labels.Set{"pod": pod}
		}
	}
	return m
}

const outside = "outside"

// addrOf returns the address of a client.
func addrOf(name string) netip.Addr {
	if name == outside {
		return netip.MustParseAddr("192.0.2.1")
	}
	return netip.AddrFrom4([4]byte{10, 244, name[0], name[2]})
}

// view returns what Judge looks at, with policies as YAML documents of namespace x.
func (m model) view(t *testing.T, policies string) *View {
	t.Helper()
	v := &View{Policies: map[string][]Policy{}, Namespaces: m.namespaces, Pods: map[string][]Pod{}}
	for name, l := range m.pods {
		ns, _, _ := strings.Cut(name, "/")
		addrs := []netip.Addr{addrOf(name), netip.MustParseAddr("fd00::1")}
		v.Pods[ns] = append(v.Pods[ns], Pod{Labels: l, Addrs: addrs})
	}
	for i, doc := range strings.Split(policies, "---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		p := networkingv1.NetworkPolicy{}
		if err := yaml.UnmarshalStrict([]byte(doc), &p.Spec); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		p.Namespace, p.Name = "x", fmt.Sprintf("p%d", i)
		if prepared, ok := Prepare(&p); ok {
			v.Policies["x"] = append(v.Policies["x"], prepared)
		}
	}
	return v
}

// clients returns the pods that may connect to a target.
func (m model) clients(v *View, target Target) []string {
	verdict := v.Judge(target)
	var out []string
	for name := range m.pods {
		if !verdict.Restricted || verdict.Allowed.Contains(addrOf(name)) {
			out = append(out, name)
		}
	}
	if !verdict.Restricted || verdict.Allowed.Contains(addrOf(outside)) {
		out = append(out, outside)
	}
	slices.Sort(out)
	return out
}

var all = strings.Fields("outside x/a x/b x/c y/a y/b y/c z/a z/b z/c")

// The cases of Kubernetes' own tests of NetworkPolicy (test/e2e/network/netpol) that concern ingress over TCP, under
// their names there. The target is pod a of namespace x with its port 80, which is called serve-80-tcp; 81 is another.
var conformance = []struct {
	name     string
	policies string
	port     int32 // default: 80
	want     string
}{
	{name: "no policy", want: "all"},
	{name: "should support a 'default-deny-ingress' policy", policies: "{podSelector: {}, policyTypes: [Ingress]}"},
	{name: "should support a 'default-deny-all' policy", policies: "{podSelector: {}, policyTypes: [Ingress, Egress]}"},
	{name: "a policy of egress alone does not isolate for ingress", want: "all",
		policies: "{podSelector: {}, policyTypes: [Egress]}"},
	{name: "a policy for another pod", policies: "{podSelector: {matchLabels: {pod: b}}}", want: "all"},
	{name: "should enforce policy to allow traffic from pods within server namespace based on PodSelector", want: "x/b",
		policies: `
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]`},
	{name: "should enforce policy to allow ingress traffic for a target", want: "y/b",
		policies: `
podSelector: {}
---
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{podSelector: {matchLabels: {pod: b}}, namespaceSelector: {matchLabels: {ns: 'y'}}}]}]`},
	{name: "should enforce policy to allow ingress traffic from pods in all namespaces",
		want:     "x/a x/b x/c y/a y/b y/c z/a z/b z/c",
		policies: "{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {}}]}]}"},
	{name: "should enforce policy to allow traffic only from a different namespace, based on NamespaceSelector",
		want: "y/a y/b y/c",
		policies: `
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{namespaceSelector: {matchLabels: {ns: 'y'}}}]}]`},
	{name: "should enforce policy to allow traffic based on NamespaceSelector with MatchLabels using default ns label",
		want: "y/a y/b y/c",
		policies: `
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: 'y'}}}]}]`},
	{name: "should enforce policy based on PodSelector with MatchExpressions", want: "x/b",
		policies: `
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{podSelector: {matchExpressions: [{key: pod, operator: In, values: [b]}]}}]}]`},
	{name: "should enforce policy based on NamespaceSelector with MatchExpressions", want: "y/a y/b y/c",
		policies: `
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: In, values: ['y']}]}}]}]`},
	{name: "should enforce policy based on NamespaceSelector with MatchExpressions using default ns label",
		want: "x/a x/b x/c z/a z/b z/c",
		policies: `
podSelector: {matchLabels: {pod: a}}
ingress:
- from:
  - namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: ['y']}]}`},
	{name: "should enforce policy based on PodSelector or NamespaceSelector", want: "x/b y/a y/b y/c z/a z/b z/c",
		policies: `
podSelector: {matchLabels: {pod: a}}
ingress:
- from:
  - namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [x]}]}
  - podSelector: {matchLabels: {pod: b}}`},
	{name: "should enforce policy based on PodSelector and NamespaceSelector", want: "y/b z/b",
		policies: `
podSelector: {matchLabels: {pod: a}}
ingress:
- from:
  - namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [x]}]}
    podSelector: {matchLabels: {pod: b}}`},
	{name: "should enforce policy based on Multiple PodSelectors and NamespaceSelectors", want: "y/b y/c z/b z/c",
		policies: `
podSelector: {matchLabels: {pod: a}}
ingress:
- from:
  - namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [x]}]}
    podSelector: {matchExpressions: [{key: pod, operator: In, values: [b, c]}]}`},
	{name: "should enforce policy based on any PodSelectors", want: "x/b x/c",
		policies: `
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}, {podSelector: {matchLabels: {pod: c}}}]}]`},
	{name: "should enforce policy to allow traffic only from a pod in a different namespace based on PodSelector and " +
		"NamespaceSelector", want: "y/a",
		policies: `
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{namespaceSelector: {matchLabels: {ns: 'y'}}, podSelector: {matchLabels: {pod: a}}}]}]`},
	{name: "should enforce policy based on Ports", port: 81, want: "y/a y/b y/c", policies: ofPort("{port: 81}")},
	{name: "should enforce policy based on Ports: another port", port: 80, policies: ofPort("{port: 81}")},
	{name: "should enforce multiple, stacked policies with overlapping podSelectors: 80", port: 80, want: "y/a y/b y/c",
		policies: ofPort("{port: 81}") + "\n---\n" + ofPort("{port: 80}")},
	{name: "should enforce multiple, stacked policies with overlapping podSelectors: 81", port: 81, want: "y/a y/b y/c",
		policies: ofPort("{port: 81}") + "\n---\n" + ofPort("{port: 80}")},
	{name: "should support allow-all policy", want: "all", policies: "{podSelector: {}, ingress: [{}]}"},
	{name: "should support allow-all policy: beside default deny", want: "all",
		policies: "podSelector: {}\n---\n{podSelector: {}, ingress: [{}]}"},
	{name: "should allow ingress access on one named port", want: "all",
		policies: "{podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: serve-80-tcp}]}]}"},
	{name: "should allow ingress access on one named port: another port", port: 81,
		policies: "{podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: serve-80-tcp}]}]}"},
	{name: "should allow ingress access from namespace on one named port", want: "y/a y/b y/c",
		policies: ofPort("{port: serve-80-tcp}")},
	{name: "should deny ingress from pods on other namespaces", want: "x/a x/b x/c",
		policies: "{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}"},
	{name: "should work with Ingress, Egress specified together", want: "x/b",
		policies: `
podSelector: {matchLabels: {pod: a}}
policyTypes: [Ingress, Egress]
ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]
egress: [{ports: [{port: 80}]}]`},
	{name: "should enforce ingress policy allowing any port traffic to a server on a specific protocol", want: "all",
		policies: "{podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{protocol: TCP}]}]}"},
	{name: "should not allow access by TCP when a policy specifies only UDP",
		policies: "{podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{protocol: UDP, port: 80}]}]}"},
	{name: "should not mistakenly treat 'protocol: SCTP' as 'protocol: TCP', even if the plugin doesn't support SCTP",
		policies: "{podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{protocol: SCTP, port: 80}]}]}"},
	{name: "should properly isolate pods that are selected by a policy allowing SCTP, even if the plugin doesn't " +
		"support SCTP", want: "y/a y/b y/c",
		policies: ofPort("{protocol: SCTP, port: 80}") + "\n---\n" + ofPort("{port: 80}")},
	{name: "endPort: within", port: 85, want: "y/a y/b y/c", policies: ofPort("{port: 81, endPort: 90}")},
	{name: "endPort: last", port: 90, want: "y/a y/b y/c", policies: ofPort("{port: 81, endPort: 90}")},
	{name: "endPort: beyond", port: 91, policies: ofPort("{port: 81, endPort: 90}")},
	{name: "ipBlock", want: outside,
		policies: "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}]}"},
	{name: "ipBlock of everything but the pods", want: outside,
		policies: "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.244.0.0/16]}}]}]}"},
	{name: "should ensure an IP overlapping both IPBlock.CIDR and IPBlock.Except is allowed", want: "y/a y/b y/c",
		policies: `
podSelector: {}
ingress:
- from:
  - ipBlock: {cidr: 10.244.121.0/24, except: [10.244.121.98/32]}
  - ipBlock: {cidr: 10.244.121.98/32}`},
	{name: "ipBlock of IPv6", policies: "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: '::/0'}}]}]}"},
	{name: "several peers and ports", want: "outside x/b",
		policies: `
podSelector: {matchExpressions: [{key: pod, operator: Exists}]}
ingress:
- from: [{ipBlock: {cidr: 192.0.2.1/32}}, {podSelector: {matchLabels: {pod: b}}}]
  ports: [{protocol: UDP, port: 53}, {port: 80}]
- from: [{namespaceSelector: {}}]
  ports: [{port: 443}]`},
	// What the API server refuses allows no client.
	{name: "a selector that cannot be", policies: `
podSelector: {matchExpressions: [{key: pod, operator: Is, values: [b]}]}
ingress: [{}]`},
	{name: "a peer that cannot be", want: "x/b", policies: `
podSelector: {}
ingress:
- from:
  - podSelector: {matchExpressions: [{key: pod, operator: Is}]}
  - podSelector: {matchLabels: {pod: b}}`},
	{name: "a block that cannot be",
		policies: "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [x]}}]}]}"},
	{name: "an empty peer", policies: "{podSelector: {}, ingress: [{from: [{}]}]}"},
}

// ofPort is a policy that lets namespace y connect to a port.
func ofPort(port string) string {
	return "{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: 'y'}}}], " +
		"ports: [" + port + "]}]}"
}

func TestVerdictsMatchUpstreamConformanceTests(t *testing.T) {
	for _, c := range conformance {
		t.Run(c.name, func(t *testing.T) {
			m := newModel()
			target := Target{Namespace: "x", Labels: labels.Set{"pod": "a"}, Port: 80}
			target.PortNames = []string{"serve-80-tcp"}
			if c.port != 0 && c.port != 80 {
				target.Port, target.PortNames = c.port, nil
			}
			want := strings.Fields(c.want)
			if c.want == "all" {
				want = all
			}
			if got := m.clients(m.view(t, c.policies), target); !slices.Equal(got, want) {
				t.Errorf("%v may connect, want %v", got, want)
			}
		})
	}
}

// The cases in which policies, namespaces or pods change.
func TestConformanceOfChanges(t *testing.T) {
	a := Target{Namespace: "x", Labels: labels.Set{"pod": "a"}, Port: 80}
	m := newModel()
	check := func(what, policies string, want ...string) {
		t.Helper()
		if got := m.clients(m.view(t, policies), a); !slices.Equal(got, want) {
			t.Errorf("%s: %v may connect, want %v", what, got, want)
		}
	}
	check("should enforce updated policy, before", "podSelector: {}\ningress: [{}]", all...)
	check("should enforce updated policy, after", "podSelector: {}")
	check("should stop enforcing policies after they are deleted", "", all...)

	const fromNamespace = "podSelector: {}\ningress: [{from: [{namespaceSelector: {matchLabels: {ns2: updated}}}]}]"
	check("should allow ingress access from updated namespace, before", fromNamespace)
	m.namespaces["y"] = labels.Set{"ns": "y", "ns2": "updated"}
	check("should allow ingress access from updated namespace, after", fromNamespace, "y/a", "y/b", "y/c")

	const fromPod = "podSelector: {}\ningress: [{from: [{podSelector: {matchLabels: {pod2: updated}}}]}]"
	check("should allow ingress access from updated pod, before", fromPod)
	m.pods["x/b"] = labels.Set{"pod": "b", "pod2": "updated"}
	check("should allow ingress access from updated pod, after", fromPod, "x/b")

	const toPod = "podSelector: {matchLabels: {target: isolated}}"
	check("should deny ingress access to updated pod, before", toPod, all...)
	a.Labels = labels.Set{"pod": "a", "target": "isolated"}
	check("should deny ingress access to updated pod, after", toPod)
}

func TestVerdictNamesThePoliciesAndWhetherPodsMatter(t *testing.T) {
	m := newModel()
	a := Target{Namespace: "x", Labels: labels.Set{"pod": "a"}, Port: 80}
	v := m.view(t, "podSelector: {}\n---\npodSelector: {}\ningress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}]")
	if got := v.Judge(a); got.Selects || !slices.Equal(got.Policies, []string{"p0", "p1"}) {
		t.Errorf("%+v", got)
	}
	if got := m.view(t, ofPort("{port: 80}")).Judge(a); !got.Selects {
		t.Errorf("%+v", got)
	}
	if got := m.view(t, ofPort("{port: 81}")).Judge(a); got.Selects || !got.Restricted {
		t.Errorf("%+v", got)
	}
	a.Namespace = "y"
	if got := m.view(t, "podSelector: {}").Judge(a); got.Restricted {
		t.Errorf("a policy of another namespace: %+v", got)
	}
}

// A policy about one port of a service says nothing about the others.
func TestEachPortOfAServiceHasItsOwnVerdict(t *testing.T) {
	a := Target{Namespace: "x", Labels: labels.Set{"pod": "a"}, Port: 80, More: []Port{
		{Number: 9113}, {Number: 8443, Names: []string{"https"}},
	}}
	got := newModel().view(t, "podSelector: {}\ningress:\n"+
		"- {from: [{ipBlock: {cidr: 10.1.0.0/16}}], ports: [{port: 80}]}\n"+
		"- {from: [{ipBlock: {cidr: 10.2.0.0/16}}], ports: [{port: https}]}").Judge(a)
	if !got.Restricted || len(got.More) != 2 {
		t.Fatalf("%+v", got)
	}
	for i, want := range []string{"10.1.0.5", "", "10.2.0.5"} {
		allowed := got.Allowed
		if i > 0 {
			allowed = got.More[i-1]
		}
		for _, client := range []string{"10.1.0.5", "10.2.0.5"} {
			if in := allowed.Contains(netip.MustParseAddr(client)); in != (client == want) {
				t.Errorf("port %d: %s may connect: %t", i, client, in)
			}
		}
	}
	if changed := got; changed.Equal(&got) {
		changed.More = nil
		if changed.Equal(&got) {
			t.Error("a verdict about other ports is equal")
		}
	}
}

// The API server accepts prefixes with leading zeros, with host bits, and IPv4 prefixes mapped to IPv6.
func TestPrefixesMeanWhatTheAPIServerTakesThemFor(t *testing.T) {
	target := Target{Namespace: "x", Labels: labels.Set{"pod": "a"}, Port: 80}
	for _, c := range []struct {
		block string
		want  bool // whether 10.1.0.5 may connect
	}{
		{"{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}", false},
		{"{cidr: 10.0.0.0/8, except: ['::ffff:10.1.0.0/112']}", false},
		{"{cidr: 10.0.0.0/8, except: [010.001.0.0/16]}", false},
		{"{cidr: 10.0.0.0/8, except: ['::ffff:10.2.0.0/112']}", true},
		{"{cidr: '::ffff:10.0.0.0/104'}", true},
		{"{cidr: 010.0.0.0/8}", true},
		{"{cidr: 10.9.9.9/8}", true},
		{"{cidr: '::/0'}", false},
		{"{cidr: 10.0.0.0/8, except: [nonsense]}", false},
	} {
		v := newModel().view(t, "{podSelector: {}, ingress: [{from: [{ipBlock: "+c.block+"}]}]}").Judge(target)
		if got := v.Allowed.Contains(netip.MustParseAddr("10.1.0.5")); !v.Restricted || got != c.want {
			t.Errorf("%s: allowed %v, want %v", c.block, got, c.want)
		}
	}
}

// A cluster has many namespaces with the same policy: their selectors are not matched with all pods for each of them.
func TestPodsAreMatchedOnceForEachChoice(t *testing.T) {
	v := newModel().view(t, "")
	everyone := networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}}
	own := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}
	for _, peer := range []networkingv1.NetworkPolicyPeer{everyone, own} {
		for _, ns := range []string{"x", "y", "z"} {
			p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p"}}
			p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{peer}}}
			prepared, _ := Prepare(p)
			v.Policies[ns] = []Policy{prepared}
		}
		for _, ns := range []string{"x", "y", "z"} {
			verdict := v.Judge(Target{Namespace: ns, Port: 80})
			inOwn := verdict.Allowed.Contains(addrOf(ns + "/a"))
			inOther := verdict.Allowed.Contains(addrOf(map[string]string{"x": "y", "y": "z", "z": "x"}[ns] + "/a"))
			if !inOwn || inOther != (peer.NamespaceSelector != nil) {
				t.Errorf("namespace %s: own pods %v, others' %v", ns, inOwn, inOther)
			}
		}
	}
	if n := len(v.matched); n != 1+3 {
		t.Errorf("pods were matched %d times, want once for all namespaces and once for each", n)
	}
}
