// SPDX-License-Identifier: Apache-2.0

// Package knative is Knative as the other side of a comparison: services behind Kourier, and the settings that matter.
package knative

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"wangell.loutres.me/lab/cluster"
)

const (
	namespace        = "knative-serving"
	kourierNamespace = "kourier-system"
)

// Annotations of a Service.
const (
	// Window is the time over which Knative decides to scale.
	Window = "autoscaling.knative.dev/window"
	// MinScale is the number of pods below which Knative does not scale.
	MinScale = "autoscaling.knative.dev/min-scale"
	// MaxScale is the number of pods above which it does not scale.
	MaxScale = "autoscaling.knative.dev/max-scale"
	// BurstCapacity keeps the activator in the path of all requests if it is -1, and out of it while there are pods if
	// it is 0.
	BurstCapacity = "autoscaling.knative.dev/target-burst-capacity"
)

// Resource is the resource of Knative services.
var Resource = schema.GroupVersionResource{Group: "serving.knative.dev", Version: "v1", Resource: "services"}

// ErrMissing is returned if the cluster does not have Knative.
var ErrMissing = errors.New("no Knative on the cluster: go run -C test/knative . install --cluster .../cluster.json")

// Service is a Knative service behind Kourier.
type Service struct {
	Cluster *cluster.Cluster
	Name    string
	Image   string
	// Env is the environment of its container.
	Env []any
	// Annotations are the annotations of its pods.
	Annotations map[string]string
	// Token mounts a service account token, as Kubernetes does by default.
	Token bool

	// Address is where clients outside of the cluster connect to, Host the host name that they ask for. Create sets them.
	Address, Host string
}

// Create makes the service, and waits until it is Ready. Every node has the images then.
func (s *Service) Create(ctx context.Context) error {
	if err := s.pullSidecar(ctx); err != nil {
		return err
	}
	container := map[string]any{
		"image": s.Image, "ports": []any{map[string]any{"containerPort": int64(cluster.HelloPort)}},
	}
	if len(s.Env) > 0 {
		container["env"] = s.Env
	}
	spec := map[string]any{"containers": []any{container}}
	if !s.Token {
		spec["automountServiceAccountToken"] = false
	}
	annotations := map[string]any{}
	for k, v := range s.Annotations {
		annotations[k] = v
	}
	err := s.Cluster.Create(ctx, Resource, "Service", s.Name, map[string]any{
		"template": map[string]any{"metadata": map[string]any{"annotations": annotations}, "spec": spec},
	})
	if err != nil {
		return err
	}
	if err := cluster.Until(ctx, 2*cluster.ReadyTimeout, func() error { return s.findHost(ctx) }); err != nil {
		return err
	}
	return s.findIngress(ctx)
}

// Selector finds the pods of the service.
func (s *Service) Selector() string { return "serving.knative.dev/service=" + s.Name }

// Delete removes the service. Its pods end afterwards.
func (s *Service) Delete(ctx context.Context) error {
	err := s.Cluster.Dynamic.Resource(Resource).Namespace(s.Cluster.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{})
	if err != nil {
		return fmt.Errorf("delete Knative service %s: %w", s.Name, err)
	}
	return nil
}

// Gateways returns the pods of Kourier's Envoy.
func Gateways(ctx context.Context, c *cluster.Cluster) ([]corev1.Pod, error) {
	list, err := c.Kube.CoreV1().Pods(kourierNamespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app=3scale-kourier-gateway"})
	if err != nil {
		return nil, fmt.Errorf("the gateway of Kourier: %w", err)
	}
	return list.Items, nil
}

// findHost finds the host name of the service. It fails while the service is not Ready.
func (s *Service) findHost(ctx context.Context) error {
	resource := s.Cluster.Dynamic.Resource(Resource).Namespace(s.Cluster.Namespace)
	object, err := resource.Get(ctx, s.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get the Knative service: %w", err)
	}
	text, _, _ := unstructured.NestedString(object.Object, "status", "url")
	at, err := url.Parse(text)
	if err != nil {
		return fmt.Errorf("the Knative service's URL: %w", err)
	}
	s.Host = at.Host
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Ready" && c["status"] == "True" && s.Host != "" {
			return nil
		}
	}
	return fmt.Errorf("the Knative service is not Ready: %v", conditions)
}

// Installed returns ErrMissing if the cluster does not have Knative.
func Installed(ctx context.Context, c *cluster.Cluster) error {
	_, err := deploymentConfig(ctx, c)
	return err
}

// deploymentConfig returns Knative's settings of the pods that it makes.
func deploymentConfig(ctx context.Context, c *cluster.Cluster) (map[string]string, error) {
	config, err := c.Kube.CoreV1().ConfigMaps(namespace).Get(ctx, "config-deployment", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, ErrMissing
	}
	if err != nil {
		return nil, fmt.Errorf("settings of Knative: %w", err)
	}
	return config.Data, nil
}

// pullSidecar pulls Knative's own container of each pod on every node.
func (s *Service) pullSidecar(ctx context.Context) error {
	config, err := deploymentConfig(ctx, s.Cluster)
	if err != nil {
		return err
	}
	return s.Cluster.Nodes.Pull(ctx, config["queue-sidecar-image"])
}

// findIngress finds the address of Kourier for clients outside: its node port, on the node where it runs.
func (s *Service) findIngress(ctx context.Context) error {
	service, err := s.Cluster.Kube.CoreV1().Services(kourierNamespace).Get(ctx, "kourier", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the Service of Kourier: %w", err)
	}
	gateways, err := Gateways(ctx, s.Cluster)
	if err != nil {
		return err
	}
	for _, port := range service.Spec.Ports {
		for _, p := range gateways {
			if port.Port == 80 && port.NodePort != 0 && cluster.Ready(&p) {
				s.Address = p.Status.HostIP + ":" + strconv.Itoa(int(port.NodePort))
				return nil
			}
		}
	}
	return errors.New("the Service of Kourier has no node port for port 80, or its gateway is not ready")
}

// Settings returns Knative's settings that can change the outcome, and the versions of its components.
func Settings(
	ctx context.Context, c *cluster.Cluster,
) (settings map[string]any, versions map[string]string, err error) {
	settings, versions = map[string]any{}, map[string]string{}
	config, err := c.Kube.CoreV1().ConfigMaps(namespace).Get(ctx, "config-autoscaler", metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("settings of Knative: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(config.Data)) {
		if key != "_example" {
			settings["knative config-autoscaler: "+key] = config.Data[key]
		}
	}
	for _, of := range []string{namespace, kourierNamespace} {
		list, err := c.Kube.AppsV1().Deployments(of).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, nil, fmt.Errorf("versions of Knative: %w", err)
		}
		for _, d := range list.Items {
			versions["knative "+d.Name] = imageVersion(d.Spec.Template.Spec.Containers[0].Image)
		}
	}
	return settings, versions, nil
}

// imageVersion returns the tag of an image reference, or all of the reference if it has none.
func imageVersion(reference string) string {
	untagged, _, _ := strings.Cut(reference, "@")
	if i := strings.LastIndexByte(untagged, ':'); i > strings.LastIndexByte(untagged, '/') {
		return untagged[i+1:]
	}
	return reference
}
