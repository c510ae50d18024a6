// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"wangell.loutres.me/internal/base/backoff"
)

const (
	// nodePolicyPause is the time between two looks at nodes and sessions.
	nodePolicyPause = 2 * time.Second
	// nodePolicySettle is how long a leader waits for daemons before it judges by their sessions.
	nodePolicySettle = 20 * time.Second
	// maxNodeBlocks is the most addresses that a list has: an object may have 1 MiB.
	maxNodeBlocks = 5000
	// maxNodeSources is the most addresses of one Node: kubelet may change those, and with them what a stolen node is
	// worth.
	maxNodeSources = 16
)

// nodePolicy keeps the rules of a NetworkPolicy of the chart, by which nodes alone reach the ports for daemons. The
// chart leaves the field out, so that neither helm nor a GitOps controller changes it.
type nodePolicy struct {
	client   kubernetes.Interface
	at       Name
	log      *slog.Logger
	sessions func() map[string]netip.Addr // the address that the datagrams of each node's daemon come from

	said string // what the log has said of the rules
}

// readNodes describes Nodes for judge.
type readNodes = map[string][]netip.Addr

// run keeps the rules until ctx ends. prepare has been called before.
func (p *nodePolicy) run(ctx context.Context) {
	f := informers.NewSharedInformerFactoryWithOptions(p.client, 0, informers.WithTransform(trimNode))
	nodes := f.Core().V1().Nodes().Informer()
	go nodes.Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced) {
		return
	}
	began := time.Now()
	var pause time.Duration
	for {
		err := p.renew(ctx, nodes.GetStore().List(), time.Since(began))
		if ctx.Err() != nil {
			return
		}
		if pause = nodePolicyPause; err != nil {
			p.log.Warn("cannot keep the NetworkPolicy that lets nodes reach the controllers", "networkpolicy", p.at.String(),
				"error", err)
			pause = backoff.Next(pause, 5*time.Second, time.Minute)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// prepare lets everybody reach the ports if the NetworkPolicy has no rules yet: in a new installation, before any
// daemon can have shown where its datagrams come from.
func (p *nodePolicy) prepare(ctx context.Context) error {
	there, err := p.read(ctx)
	if err == nil && there != nil && len(there.Spec.Ingress) == 0 {
		err = p.write(ctx, ingressFor(nil))
	}
	if err != nil {
		return fmt.Errorf("NetworkPolicy %s: %w", p.at, err)
	}
	return nil
}

// read returns the NetworkPolicy, or nil if there is none.
func (p *nodePolicy) read(ctx context.Context) (*networkingv1.NetworkPolicy, error) {
	there, err := p.client.NetworkingV1().NetworkPolicies(p.at.Namespace).Get(ctx, p.at.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return there, err
}

// renew writes the rules if they have changed.
func (p *nodePolicy) renew(ctx context.Context, list []any, led time.Duration) error {
	there, err := p.read(ctx)
	if err != nil || there == nil {
		return err
	}
	nodes := readNodes{}
	for _, o := range list {
		n := o.(*corev1.Node)
		nodes[n.Name] = nodeSources(n)
	}
	cilium, err := p.cilium()
	if err != nil {
		return err
	}
	verdict := judgeNodes(nodes, p.sessions(), cilium, led, listedIn(there.Spec.Ingress))
	if verdict.keep {
		return nil
	}
	p.tell(&verdict)
	want := ingressFor(verdict.addrs)
	if equality.Semantic.DeepEqual(want, there.Spec.Ingress) {
		return nil
	}
	return p.write(ctx, want)
}

// tell logs changed reasons.
func (p *nodePolicy) tell(v *nodeVerdict) {
	text := v.open
	if text == "" {
		text = "nodes only"
	}
	if text == p.said {
		return
	}
	p.said = text
	if v.open == "" {
		p.log.Info("a NetworkPolicy lets nodes alone reach the ports for daemons", "networkpolicy", p.at.String(),
			"addresses", len(v.addrs))
	} else {
		p.log.Warn("all pods reach the ports for daemons: set networkPolicy.nodeCIDRs of the chart", "why", v.open)
	}
}

// cilium reports whether the cluster's pod network is Cilium, which does not match nodes by their addresses.
func (p *nodePolicy) cilium() (bool, error) {
	groups, err := p.client.Discovery().ServerGroups()
	if err != nil {
		return false, fmt.Errorf("list API groups: %w", err)
	}
	return slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == "cilium.io" }), nil
}

// write replaces the rules.
func (p *nodePolicy) write(ctx context.Context, rules []networkingv1.NetworkPolicyIngressRule) error {
	patch, err := json.Marshal(map[string]any{
		"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"metadata": map[string]any{"namespace": p.at.Namespace, "name": p.at.Name},
		"spec":     map[string]any{"ingress": rules},
	})
	if err != nil {
		return err
	}
	force := true
	_, err = p.client.NetworkingV1().NetworkPolicies(p.at.Namespace).Patch(ctx, p.at.Name, types.ApplyPatchType, patch,
		metav1.PatchOptions{FieldManager: "wangell-nodes", Force: &force})
	return err
}

// ingressFor returns the rules that let addresses reach the ports for daemons; everybody if there are none.
func ingressFor(addrs []netip.Addr) []networkingv1.NetworkPolicyIngressRule {
	udp, tcp := corev1.ProtocolUDP, corev1.ProtocolTCP
	wirePort, enrolment := intstr.FromString("wire"), intstr.FromString("enrolment")
	rule := networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{
		{Protocol: &udp, Port: &wirePort}, {Protocol: &tcp, Port: &enrolment},
	}}
	for _, a := range addrs {
		block := networkingv1.IPBlock{CIDR: netip.PrefixFrom(a, a.BitLen()).String()}
		rule.From = append(rule.From, networkingv1.NetworkPolicyPeer{IPBlock: &block})
	}
	return []networkingv1.NetworkPolicyIngressRule{rule}
}

// listedIn returns the addresses of rules by ingressFor; none if everybody may connect.
func listedIn(rules []networkingv1.NetworkPolicyIngressRule) (addrs []netip.Addr) {
	for i := range rules {
		for _, peer := range rules[i].From {
			if peer.IPBlock == nil {
				continue
			}
			if b, err := netip.ParsePrefix(peer.IPBlock.CIDR); err == nil && b.IsSingleIP() {
				addrs = append(addrs, b.Addr())
			}
		}
	}
	return addrs
}

// nodeVerdict is what the rules should be: keep leaves them, open says why everybody may connect, and addrs are those
// that may otherwise.
type nodeVerdict struct {
	keep  bool
	open  string
	addrs []netip.Addr
}

// judgeNodes decides who may connect to the ports for daemons: nodes, given by the addresses that each is expected to
// have, and the addresses from which daemons do connect. listed are those that may so far, none for everybody, and led
// is how long this leader has led.
//
// What pods see of a node's address depends on the pod network. So nodes alone may connect only where sessions show
// that what is expected holds: otherwise a list would lock nodes out.
func judgeNodes(
	nodes readNodes, sessions map[string]netip.Addr, cilium bool, led time.Duration, listed []netip.Addr,
) nodeVerdict {
	all, odd, heard := map[netip.Addr]bool{}, []string{}, 0
	for _, addrs := range nodes {
		for _, a := range addrs {
			all[a] = true
		}
	}
	for name, a := range sessions {
		addrs, there := nodes[name]
		if !there {
			continue // deleted: it gets no more than its session
		}
		heard++
		if !slices.Contains(addrs, a) {
			odd = append(odd, fmt.Sprintf("%s at %s", name, a))
		}
		all[a] = true
	}
	settled := led >= nodePolicySettle
	switch {
	case cilium:
		return nodeVerdict{open: "Cilium does not match nodes by their addresses"}
	case len(all) > maxNodeBlocks:
		return nodeVerdict{open: fmt.Sprintf("the nodes have more than %d addresses", maxNodeBlocks)}
	case !settled && len(listed) == 0:
		return nodeVerdict{keep: true}
	case settled && heard == 0 && len(nodes) > 0 && len(listed) > 0:
		return nodeVerdict{open: "no daemon connects"}
	case settled && len(odd) > 0 && 2*len(odd) >= heard:
		slices.Sort(odd)
		return nodeVerdict{open: fmt.Sprintf("%d of %d daemons connect from addresses that their Nodes do not show: %s",
			len(odd), heard, strings.Join(odd[:min(3, len(odd))], ", "))}
	case len(listed) == 0 && heard < min(2, len(nodes)) || len(nodes) == 0:
		return nodeVerdict{keep: true} // a daemon on the leader's own node shows nothing
	}
	if !settled { // daemons that have not come back yet
		for _, a := range listed {
			all[a] = true
		}
	}
	return nodeVerdict{addrs: slices.SortedFunc(maps.Keys(all), netip.Addr.Compare)}
}

// tunnelAnnotations are annotations of Nodes that have an address of the node on the pod network.
var tunnelAnnotations = []string{
	"projectcalico.org/IPv4IPIPTunnelAddr", "projectcalico.org/IPv4VXLANTunnelAddr",
	"projectcalico.org/IPv4WireguardInterfaceAddr", "ovn.kubernetes.io/ip_address",
	"flannel.alpha.coreos.com/public-ip",
}

// nodeSources returns the addresses from which processes on a node may connect to pods: its own, those of tunnels and,
// of its range of pod addresses, the first one, which Flannel gives to its tunnel, and the second one, which bridges
// have.
func nodeSources(n *corev1.Node) (addrs []netip.Addr) {
	add := func(text string) {
		if a, err := netip.ParseAddr(text); err == nil && len(addrs) < maxNodeSources && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			add(a.Address)
		}
	}
	for _, text := range append([]string{n.Spec.PodCIDR}, n.Spec.PodCIDRs...) {
		if p, err := netip.ParsePrefix(text); err == nil && !p.IsSingleIP() {
			add(p.Masked().Addr().String())
			add(p.Masked().Addr().Next().String())
		}
	}
	for _, name := range tunnelAnnotations {
		add(n.Annotations[name])
	}
	return addrs
}

// trimNode leaves of a Node what nodeSources needs.
func trimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	small := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion},
		Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
		Status:     corev1.NodeStatus{Addresses: n.Status.Addresses},
	}
	for _, name := range tunnelAnnotations {
		if value, there := n.Annotations[name]; there {
			if small.Annotations == nil {
				small.Annotations = map[string]string{}
			}
			small.Annotations[name] = value
		}
	}
	return small, nil
}
