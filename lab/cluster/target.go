// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"wangell.loutres.me/api/v1alpha1"
)

// HelloPort is the port of the hello image and of every load server.
const HelloPort = 8080

// Target is a service under load.
type Target struct {
	Cluster *Cluster
	// Resource has the scale subresource; Name is the name of the object.
	Resource schema.GroupVersionResource
	Name     string
	// Selector finds the pods.
	Selector string
	// Inside is where pods of the cluster connect to, Outside where hosts on the LAN do.
	Inside, Outside string
	// Host is the host name that clients ask for. Default: the address.
	Host string
}

// What a load server does at SIGTERM; see the hello image.
const (
	StopNow    = "now"
	StopRefuse = "refuse"
)

// ServerCPU is the processor request of each pod of a load server.
const ServerCPU = "100m"

// settled is how long the pods must have been as expected before a measurement.
const settled = 1500 * time.Millisecond

// Server describes the pods of a load server.
type Server struct {
	Image string
	// Stop is the environment variable STOP: what the server does at SIGTERM.
	Stop string
	// Delay is the environment variable DELAY; see lab/proxy/scaling/server.
	Delay time.Duration
	// Work is the environment variable WORK: the processor time of each answer; see the hello image.
	Work time.Duration
}

// Env is the environment of the server, as a container has it.
func (s Server) Env() []any {
	env := []any{map[string]any{"name": "STOP", "value": s.Stop}}
	if s.Delay > 0 {
		env = append(env, map[string]any{"name": "DELAY", "value": s.Delay.String()})
	}
	if s.Work > 0 {
		env = append(env, map[string]any{"name": "WORK", "value": s.Work.String()})
	}
	return env
}

// PodSpec returns the specification of the pods. They are spread over the nodes.
func (s Server) PodSpec() map[string]any {
	return map[string]any{
		"automountServiceAccountToken": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": int64(15),
		"topologySpreadConstraints": []any{map[string]any{
			"maxSkew": int64(1), "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
			"labelSelector": map[string]any{"matchLabels": map[string]any{"load": "server"}},
		}},
		"containers": []any{map[string]any{
			"name": "main", "image": s.Image, "env": s.Env(),
			"ports":     []any{map[string]any{"containerPort": int64(HelloPort)}},
			"resources": map[string]any{"requests": map[string]any{"cpu": ServerCPU}},
		}},
	}
}

// Create makes an object in the experiment's namespace.
func (c *Cluster) Create(
	ctx context.Context, resource schema.GroupVersionResource, kind, name string, spec map[string]any,
) error {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"name": name, "namespace": c.Namespace}, "spec": spec,
	}}
	_, err := c.Dynamic.Resource(resource).Namespace(c.Namespace).Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create %s %s: %w", kind, name, err)
	}
	return nil
}

// WangellTarget makes a WangellService and waits until it has an address.
func (c *Cluster) WangellTarget(ctx context.Context, name string, server Server, maxReplicas int) (*Target, error) {
	return c.WangellTargetWith(ctx, name, server, maxReplicas, nil)
}

// RequestTarget is WangellTarget for a service that balances requests.
func (c *Cluster) RequestTarget(ctx context.Context, name string, server Server, maxReplicas int) (*Target, error) {
	return c.WangellTargetWith(ctx, name, server, maxReplicas,
		map[string]any{"balancing": map[string]any{"level": string(v1alpha1.LevelRequest)}})
}

// WangellTargetWith is WangellTarget with more in the service's specification.
func (c *Cluster) WangellTargetWith(ctx context.Context, name string, server Server, maxReplicas int,
	more map[string]any) (*Target, error) {
	spec := map[string]any{
		"port": int64(80), "targetPort": int64(HelloPort), "idleTimeout": int64(24 * 3600),
		"maxReplicas": int64(maxReplicas),
		"template": map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"load": "server"}}, "spec": server.PodSpec(),
		},
	}
	maps.Copy(spec, more)
	err := c.Create(ctx, v1alpha1.Resource, v1alpha1.Kind, name, spec)
	if err != nil {
		return nil, fmt.Errorf("%w: is Wangell's chart installed?", err)
	}
	t := &Target{Cluster: c, Resource: v1alpha1.Resource, Name: name, Selector: v1alpha1.LabelService + "=" + name}
	err = Until(ctx, ReadyTimeout, func() error {
		object, err := c.Dynamic.Resource(v1alpha1.Resource).Namespace(c.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ip, _, _ := unstructured.NestedString(object.Object, "status", "loadBalancerIP")
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return errors.New("it has no address")
		}
		t.Inside = netip.AddrPortFrom(addr, 80).String()
		t.Outside = t.Inside
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("WangellService %s: %w", name, err)
	}
	return t, nil
}

// Scale sets the number of pods, as `kubectl scale` does.
func (t *Target) Scale(ctx context.Context, n int) error {
	_, err := t.Cluster.Dynamic.Resource(t.Resource).Namespace(t.Cluster.Namespace).Patch(ctx, t.Name,
		types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n), metav1.PatchOptions{}, "scale")
	if err != nil {
		return fmt.Errorf("scale %s to %d: %w", t.Name, n, err)
	}
	return nil
}

// Pods returns the target's pods, including terminating ones.
func (t *Target) Pods(ctx context.Context) ([]corev1.Pod, error) {
	return t.Cluster.Pods(ctx, t.Selector)
}

// ScaleTo scales and waits until exactly n pods are ready and there are no others.
func (t *Target) ScaleTo(ctx context.Context, n int) error {
	if err := t.Scale(ctx, n); err != nil {
		return err
	}
	var since time.Time
	return Until(ctx, ZeroTimeout, func() error {
		pods, err := t.Pods(ctx)
		if err != nil {
			return err
		}
		if ready, others := CountReady(pods); ready != n || others > 0 {
			since = time.Time{}
			return fmt.Errorf("%s: %d pods are ready, want %d; %d more start or end", t.Name, ready, n, others)
		}
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since) < settled {
			return fmt.Errorf("%s: it has had %d pods for less than %v", t.Name, n, settled)
		}
		return nil
	})
}
