// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
)

// ours reports whether Wangell assigns the service its address.
func ours(s *v1alpha1.WangellService) bool { return s.Spec.Class() == v1alpha1.LoadBalancerClass }

// announced reports whether a node answers ARP for the service address.
func announced(s *v1alpha1.WangellService) bool {
	return ours(s) && s.Spec.ServiceType() == corev1.ServiceTypeLoadBalancer
}

// serviceOf returns the Service of a service. It has no selector. Its one endpoint is the service address: clients in
// the cluster that use the name reach the gate, and for kube-proxy a sleeping service still has an endpoint. With
// nodePorts, clients outside may also use a port of each node, from which kube-proxy forwards to that endpoint.
func serviceOf(s *v1alpha1.WangellService, nodePorts bool) *corev1.Service {
	policy := corev1.IPFamilyPolicySingleStack
	svc := &corev1.Service{
		ObjectMeta: meta(s),
		Spec: corev1.ServiceSpec{
			Type: s.Spec.ServiceType(), IPFamilyPolicy: &policy, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: servicePorts(s.Spec.PortList()),
		},
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		svc.Spec.LoadBalancerClass = new(s.Spec.Class())
		if ours(s) {
			svc.Spec.AllocateLoadBalancerNodePorts = &nodePorts
		} else {
			// Another load balancer may use a node port, and may take the wanted address from this field.
			svc.Spec.LoadBalancerIP = s.Spec.Address
		}
	}
	wanted := s.Spec.Service
	if wanted == nil {
		wanted = &v1alpha1.ServiceObject{}
	}
	if wanted.IPFamilyPolicy != "" {
		policy = wanted.IPFamilyPolicy
	}
	input := any(svc.Spec)
	if len(wanted.Labels)+len(wanted.Annotations) > 0 {
		input = []any{svc.Spec, wanted.Labels, wanted.Annotations}
	}
	for k, v := range wanted.Labels {
		svc.Labels = with(svc.Labels, k, v)
	}
	for k, v := range wanted.Annotations {
		svc.Annotations = with(svc.Annotations, k, v)
	}
	svc.Annotations[madeFrom] = digest(input)
	return svc
}

// cleanupFinalizer is on a Service while a load balancer exists for it; its controller removes it.
const cleanupFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// ensureService ensures the Service. The operator applies its own fields and leaves those of others alone.
//
// The class of a Service of type LoadBalancer is immutable, but any class is allowed when a Service becomes one. So for
// another class the Service is of type ClusterIP in between: it keeps its cluster IP and what others have written, and
// the API server removes the former address. The Service returned has that type while the former load balancer is still
// being removed.
func (r *reconciler) ensureService(ctx context.Context, s *v1alpha1.WangellService) (*corev1.Service, error) {
	want := serviceOf(s, r.nodePorts)
	svc, created, err := getOrCreate(ctx, r, want)
	if err != nil || created {
		return svc, err
	}
	if keepAllocated(svc, want); !differs(svc, want) {
		return svc, nil
	}
	if changesClass(svc, want) {
		between := want.DeepCopy()
		between.Spec.Type, between.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
		between.Spec.LoadBalancerIP, between.Spec.AllocateLoadBalancerNodePorts = "", nil
		if svc, err = r.applyService(ctx, svc, between); err != nil {
			return nil, err
		}
	}
	if want.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.Type != want.Spec.Type &&
		slices.Contains(svc.Finalizers, cleanupFinalizer) {
		return svc, nil
	}
	return r.applyService(ctx, svc, want)
}

// changesClass reports whether a Service of type LoadBalancer is to have another class.
func changesClass(is, want *corev1.Service) bool {
	const lb = corev1.ServiceTypeLoadBalancer
	return is.Spec.Type == lb && want.Spec.Type == lb &&
		!equality.Semantic.DeepEqual(is.Spec.LoadBalancerClass, want.Spec.LoadBalancerClass)
}

// differs reports whether a Service has to be written. Fields that the API server filled in or others added may differ.
func differs(is, want *corev1.Service) bool {
	return !includes(is.Labels, want.Labels) || !includes(is.Annotations, want.Annotations) ||
		!equality.Semantic.DeepDerivative(want.Spec, is.Spec) || len(is.Spec.Ports) != len(want.Spec.Ports) ||
		len(is.Spec.Selector) > 0
}

// includes reports whether a map has all entries of another.
func includes(is, want map[string]string) bool {
	for k, v := range want {
		if has, ok := is[k]; !ok || has != v {
			return false
		}
	}
	return true
}

// applyService applies the operator's fields to a Service and returns the result. What the operator has applied before
// and does not want any more is removed.
func (r *reconciler) applyService(ctx context.Context, svc, want *corev1.Service) (*corev1.Service, error) {
	failed := func(err error) error { return fmt.Errorf("apply %s: %w", nameOf(want), err) }
	is := new(corev1.Service) // the cache has no managed fields
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(svc), is); err != nil {
		return nil, failed(err)
	}
	if is.UID != svc.UID {
		return nil, failed(fmt.Errorf("it was replaced"))
	}
	want = want.DeepCopy()
	keepAllocated(is, want)
	patch, err := patchBeforeApply(is, want)
	if err != nil {
		return nil, failed(err)
	}
	if patch != nil {
		if err := r.client.Patch(ctx, is, client.RawPatch(types.JSONPatchType, patch),
			client.FieldOwner(fieldManager)); err != nil {
			return nil, failed(err)
		}
	}
	want.UID = is.UID // a Service of others that has taken its place is left alone
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	if err != nil {
		return nil, failed(err)
	}
	delete(fields, "status")
	u := &unstructured.Unstructured{Object: fields}
	u.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
	if err := r.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(fieldManager),
		client.ForceOwnership); err != nil {
		return nil, failed(err)
	}
	applied := new(corev1.Service)
	return applied, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, applied)
}

// keepAllocated adds what the API server has allocated for a Service, and what must stay, to the wanted one.
func keepAllocated(is, want *corev1.Service) {
	if *want.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack && len(is.Spec.IPFamilies) > 0 &&
		is.Spec.IPFamilies[0] == corev1.IPv4Protocol {
		want.Spec.IPFamilies = is.Spec.IPFamilies
	}
	if want.Spec.Type != corev1.ServiceTypeLoadBalancer || freesNodePorts(is, want) {
		return
	}
	for i := range want.Spec.Ports {
		for _, p := range is.Spec.Ports {
			if p.Name == want.Spec.Ports[i].Name {
				want.Spec.Ports[i].NodePort = p.NodePort
			}
		}
	}
}

// freesNodePorts reports whether a Service has node ports that are to go; else the API server keeps those that it has
// allocated.
func freesNodePorts(is, want *corev1.Service) bool {
	allocates := func(svc *corev1.Service) bool { // by default
		return svc.Spec.AllocateLoadBalancerNodePorts == nil || *svc.Spec.AllocateLoadBalancerNodePorts
	}
	return allocates(is) && !allocates(want) &&
		slices.ContainsFunc(is.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort != 0 })
}

// patchBeforeApply returns the JSON patch that a Service needs before its fields can be applied; nil if it needs none.
// What the operator has written without applying it counts as applied. Ports, node ports and selectors of others,
// which an application would leave in place, are removed.
func patchBeforeApply(is, want *corev1.Service) ([]byte, error) {
	upgrade, err := csaupgrade.UpgradeManagedFieldsPatch(is, sets.New(fieldManager), fieldManager)
	if err != nil {
		return nil, err
	}
	var ops []map[string]any
	if upgrade != nil {
		if err := json.Unmarshal(upgrade, &ops); err != nil {
			return nil, err
		}
	}
	strange := slices.ContainsFunc(is.Spec.Ports, func(p corev1.ServicePort) bool {
		return !slices.ContainsFunc(want.Spec.Ports, func(q corev1.ServicePort) bool {
			return p.Port == q.Port && p.Protocol == q.Protocol
		})
	})
	if frees := freesNodePorts(is, want); frees || strange {
		if frees { // else the API server allocates others
			ops = append(ops, map[string]any{"op": "add", "path": "/spec/allocateLoadBalancerNodePorts", "value": false})
		}
		ops = append(ops, map[string]any{"op": "replace", "path": "/spec/ports", "value": want.Spec.Ports})
	}
	if len(is.Spec.Selector) > 0 {
		ops = append(ops, map[string]any{"op": "remove", "path": "/spec/selector"})
	}
	if ops == nil {
		return nil, nil
	}
	if upgrade == nil {
		ops = append(ops, map[string]any{"op": "replace", "path": "/metadata/resourceVersion",
			"value": is.ResourceVersion})
	}
	return json.Marshal(ops)
}

// needsNoLoadBalancer adds what to do to the error of a namespace's quota that does not allow a load balancer.
func needsNoLoadBalancer(err error) error {
	if text := err.Error(); apierrors.IsForbidden(err) && strings.Contains(text, "exceeded quota") &&
		(strings.Contains(text, "services.loadbalancers") || strings.Contains(text, "services.nodeports")) {
		return fmt.Errorf("%w: write spec.service: {type: ClusterIP}, which counts as neither load balancer nor node port, "+
			"or raise the quota", err)
	}
	return err
}

// ingressOf returns the load balancer status with an address of Wangell's. With the mode Proxy, kube-proxy does not
// handle the address.
func ingressOf(addr netip.Addr) corev1.LoadBalancerStatus {
	mode := corev1.LoadBalancerIPModeProxy
	return corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: addr.String(), IPMode: &mode}}}
}

// addressOf returns the IPv4 address that a load balancer assigned to a Service; the zero value if there is none.
func addressOf(svc *corev1.Service) netip.Addr {
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil && a.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// hostnameOf returns the host name that a load balancer assigned to a Service; empty if there is none.
func hostnameOf(svc *corev1.Service) string {
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.Hostname != "" {
			return in.Hostname
		}
	}
	return ""
}

// writeIngress writes the address into the status of a Service of type LoadBalancer.
func (r *reconciler) writeIngress(ctx context.Context, svc *corev1.Service, addr netip.Addr) error {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	want := ingressOf(addr)
	if addressOf(svc) == addr && len(svc.Status.LoadBalancer.Ingress) == 1 {
		if mode := svc.Status.LoadBalancer.Ingress[0].IPMode; mode != nil && *mode == *want.Ingress[0].IPMode {
			return nil
		}
	}
	next := svc.DeepCopy()
	next.Status.LoadBalancer = want
	if err := r.client.Status().Patch(ctx, next, client.MergeFrom(svc), client.FieldOwner(fieldManager)); err != nil {
		return fmt.Errorf("status of Service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	return nil
}
