// SPDX-License-Identifier: Apache-2.0

package clusterdoctor

import (
	"context"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// enforcers are DaemonSets that enforce NetworkPolicies, by their names, and what they belong to.
var enforcers = map[string]string{
	"anetd":                 "GKE Dataplane V2",
	"antrea-agent":          "Antrea",
	"azure-npm":             "Azure Network Policy Manager",
	"calico-node":           "Calico",
	"canal":                 "Canal",
	"cilium":                "Cilium",
	"kindnet":               "kindnet",
	"kube-network-policies": "kube-network-policies",
	"kube-ovn-cni":          "Kube-OVN",
	"kube-router":           "kube-router",
	"ovnkube-node":          "OVN-Kubernetes",
	"rke2-canal":            "Canal",
	"weave-net":             "Weave Net",
}

// others are pod networks that do not enforce NetworkPolicies, or only if they are told to.
var others = map[string]string{
	"aws-node":        "the Amazon VPC CNI enforces them only with enableNetworkPolicy",
	"kube-flannel-ds": "Flannel does not enforce them",
	"terway-eniip":    "Terway enforces them only if that is switched on",
}

// policies checks whether NetworkPolicies keep pods of others from the controller.
func (d *doctor) policies(ctx context.Context) Check {
	const name = "NetworkPolicy"
	own := d.of.Name + "-controller"
	_, err := d.api.NetworkingV1().NetworkPolicies(d.of.Namespace).Get(ctx, own, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Check{
			Name: name, State: Warn, Found: "the controller has none: each pod of the cluster reaches its wire and its metrics",
			Do: "set networkPolicy.enabled of the chart",
		}
	case err != nil:
		return outcome(name, err, "")
	}
	nodes, err := d.api.NetworkingV1().NetworkPolicies(d.of.Namespace).Get(ctx, own+"-nodes", metav1.GetOptions{})
	if err == nil && open(nodes) {
		return Check{
			Name: name, State: Warn,
			Found: own + "-nodes lets each pod of the cluster reach the ports for daemons; the leader's log says why",
			Do:    "set networkPolicy.nodeCIDRs of the chart to the addresses of the nodes",
		}
	}
	if err != nil && !apierrors.IsNotFound(err) { // with nodeCIDRs there is none
		return outcome(name, err, "")
	}
	v, err := d.api.Discovery().ServerVersion()
	if err != nil {
		return outcome(name, err, "check --kubeconfig and --context")
	}
	sets, err := d.api.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return outcome(name, err, "")
	}
	by, not := enforcement(v.GitVersion, sets.Items)
	switch {
	case by != "":
		return Check{Name: name, State: OK, Found: own + ", enforced by " + by}
	case not == "":
		not = "no DaemonSet is known to enforce it, so this cannot be told"
	}
	return Check{
		Name: name, State: Warn, Found: own + ": " + not,
		Do: "check that a pod of another namespace does not reach the controller's port for metrics",
	}
}

// open reports whether a rule of a policy names no sources.
func open(p *networkingv1.NetworkPolicy) bool {
	return slices.ContainsFunc(p.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
		return len(r.From) == 0
	})
}

// enforcement returns what enforces NetworkPolicies in a cluster, by the version of its API server and its DaemonSets,
// or why its pod network may not; both are empty if neither is known.
func enforcement(version string, sets []appsv1.DaemonSet) (by, not string) {
	if strings.Contains(version, "+k3s") {
		return "k3s", "" // unless it was started with --disable-network-policy
	}
	for i := range sets {
		name := sets[i].Name
		if enforcers[name] != "" {
			return enforcers[name], ""
		}
		if others[name] != "" {
			not = others[name]
		}
	}
	return "", not
}
