// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"wangell.loutres.me/api/v1alpha1"
)

// target is a service under load: that of kube-proxy or of Wangell. Both have the same pods.
type target struct {
	cluster  *proxyCluster
	resource schema.GroupVersionResource // what has the scale subresource
	name     string
	selector string
	// inside is where pods of the cluster connect to, outside where hosts on the LAN do.
	inside, outside string
	modes           []string
}

var deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

// What the load server does at SIGTERM, see the hello image.
const (
	stopNow    = "now"
	stopRefuse = "refuse"
)

const (
	// loadCPU is what each pod of the load server asks for.
	loadCPU = "100m"
)

// settled is how long pods must have been as they should be before something is measured.
const settled = 1500 * time.Millisecond

// loadPod is the specification of the load server's pods.
func loadPod(image, stop string) map[string]any {
	return map[string]any{
		"automountServiceAccountToken": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": int64(15),
		"topologySpreadConstraints": []any{map[string]any{"maxSkew": int64(1), "topologyKey": "kubernetes.io/hostname",
			"whenUnsatisfiable": "ScheduleAnyway", "labelSelector": map[string]any{"matchLabels": map[string]any{"load": "server"}}}},
		"containers": []any{map[string]any{"name": "main", "image": image, "env": []any{map[string]any{"name": "STOP", "value": stop}},
			"ports":     []any{map[string]any{"containerPort": int64(helloPort)}},
			"resources": map[string]any{"requests": map[string]any{"cpu": loadCPU}}}},
	}
}

// create makes an object in the experiment's namespace.
func (c *proxyCluster) create(ctx context.Context, resource schema.GroupVersionResource, apiVersion, kind, name string, spec map[string]any) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind,
		"metadata": map[string]any{"name": name, "namespace": c.namespace}, "spec": spec}}
	made, err := c.dynamic.Resource(resource).Namespace(c.namespace).Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create %s %s: %w", kind, name, err)
	}
	return made, nil
}

// proxyTarget makes a Deployment and a Service of type LoadBalancer for kube-proxy. Its address is the experiment's to
// give, as there is no load balancer: a host on the LAN needs a route for it to a node. stop is what the load server does
// at SIGTERM.
func (c *proxyCluster) proxyTarget(ctx context.Context, name, stop string) (*target, error) {
	labels := map[string]any{"app": name, "load": "server"}
	_, err := c.create(ctx, deployments, "apps/v1", "Deployment", name, map[string]any{
		"replicas": int64(1), "selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": loadPod(c.image, stop)},
	})
	if err != nil {
		return nil, err
	}
	// Before the cluster is closed, which removes pods: they would be made again.
	c.onClose(func() error {
		return c.dynamic.Resource(deployments).Namespace(c.namespace).Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	off := false
	service, err := c.kube.CoreV1().Services(c.namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: &off,
			Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intOrString(helloPort)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create Service %s: %w", name, err)
	}
	c.given++
	outside, err := c.lanAddress(c.given)
	if err != nil {
		return nil, err
	}
	patch := fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q,"ipMode":"VIP"}]}}}`, outside)
	if _, err := c.kube.CoreV1().Services(c.namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		return nil, fmt.Errorf("give Service %s an address: %w", name, err)
	}
	if err := c.routeClient(outside); err != nil {
		return nil, err
	}
	return &target{cluster: c, resource: deployments, name: name, selector: "app=" + name,
		inside: service.Spec.ClusterIP + ":80", outside: outside.String() + ":80", modes: []string{ModeIptables, ModeNftables}}, nil
}

// wangellTarget makes a WangellService and waits until it has its address.
func (c *proxyCluster) wangellTarget(ctx context.Context, name, stop string, maxReplicas int) (*target, error) {
	_, err := c.create(ctx, wangellResource, v1alpha1.APIVersion, v1alpha1.Kind, name, map[string]any{
		"port": int64(80), "targetPort": int64(helloPort), "idleTimeout": int64(24 * 3600), "maxReplicas": int64(maxReplicas),
		"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"load": "server"}}, "spec": loadPod(c.image, stop)},
	})
	if err != nil {
		return nil, fmt.Errorf("%w: is Wangell's chart installed?", err)
	}
	t := &target{cluster: c, resource: wangellResource, name: name,
		selector: v1alpha1.LabelService + "=" + name, modes: []string{ModeWangell}}
	err = until(ctx, readyTimeout, func() error {
		object, err := c.dynamic.Resource(wangellResource).Namespace(c.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ip, _, _ := unstructured.NestedString(object.Object, "status", "loadBalancerIP")
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return errors.New("it has no address")
		}
		t.inside = netip.AddrPortFrom(addr, 80).String()
		t.outside = t.inside
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("WangellService %s: %w", name, err)
	}
	return t, nil
}

// scale asks for a number of pods, as `kubectl scale` does.
func (t *target) scale(ctx context.Context, n int) error {
	_, err := t.cluster.dynamic.Resource(t.resource).Namespace(t.cluster.namespace).Patch(ctx, t.name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n), metav1.PatchOptions{}, "scale")
	if err != nil {
		return fmt.Errorf("scale %s to %d: %w", t.name, n, err)
	}
	return nil
}

// pods returns its pods, those that are ending too.
func (t *target) pods(ctx context.Context) ([]corev1.Pod, error) {
	return t.cluster.podsWith(ctx, t.selector)
}

// scaleTo scales, and waits until exactly so many pods are ready and no other is there.
func (t *target) scaleTo(ctx context.Context, n int) error {
	if err := t.scale(ctx, n); err != nil {
		return err
	}
	var since time.Time
	return until(ctx, zeroTimeout, func() error {
		pods, err := t.pods(ctx)
		if err != nil {
			return err
		}
		if good, others := readyPods(pods); good != n || others > 0 {
			since = time.Time{}
			return fmt.Errorf("%s: %d pods are ready, want %d; %d more start or end", t.name, good, n, others)
		}
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since) < settled {
			return fmt.Errorf("%s: its pods have only just become %d", t.name, n)
		}
		return nil
	})
}

// serves waits until the service answers its clients several times running.
func (t *target) serves(ctx context.Context, from *vantage) error {
	good := 0
	return until(ctx, readyTimeout, func() error {
		for ; good < 10; good++ {
			if _, err := get(ctx, from.hosts[0].ns.Dialer().DialContext, from.address(t)); err != nil {
				good = 0
				return fmt.Errorf("%s does not answer clients in %s: %w", t.name, from.name, err)
			}
		}
		return nil
	})
}
