// SPDX-License-Identifier: Apache-2.0

package coldkube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"wangell.loutres.me/internal/lab/cluster"
	"wangell.loutres.me/internal/lab/probe"
)

const (
	knativeNamespace = "knative-serving"
	kourierNamespace = "kourier-system"
	// windowAnnotation is the time over which Knative decides to scale. The shortest value that it allows makes the way
	// back to zero short, and changes nothing about a cold request.
	windowAnnotation = "autoscaling.knative.dev/window"
	windowValue      = "6s"
)

// knativeServices is the resource of Knative services.
var knativeServices = schema.GroupVersionResource{Group: "serving.knative.dev", Version: "v1", Resource: "services"}

// knativeSide is a Knative service behind Kourier.
type knativeSide struct {
	cluster       *cluster.Cluster
	image         string
	token         bool
	address, host string
}

func (s *knativeSide) name() string {
	if s.token {
		return SideKnative
	}
	return SideKnativeNoToken
}

func (s *knativeSide) prepare(ctx context.Context) error {
	if err := s.pullSidecar(ctx); err != nil {
		return err
	}
	spec := map[string]any{"containers": []any{map[string]any{
		"image": s.image, "ports": []any{map[string]any{"containerPort": int64(cluster.HelloPort)}},
	}}}
	if !s.token {
		spec["automountServiceAccountToken"] = false
	}
	err := s.cluster.Create(ctx, knativeServices, "Service", knativeName(s.token), map[string]any{
		"template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{windowAnnotation: windowValue}}, "spec": spec,
		},
	})
	if err != nil {
		return err
	}
	if err := cluster.Until(ctx, 2*cluster.ReadyTimeout, func() error { return s.findHost(ctx) }); err != nil {
		return err
	}
	return s.findIngress(ctx)
}

// findHost finds the host name of the service. It fails while the service is not Ready.
func (s *knativeSide) findHost(ctx context.Context) error {
	resource := s.cluster.Dynamic.Resource(knativeServices).Namespace(s.cluster.Namespace)
	object, err := resource.Get(ctx, knativeName(s.token), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get the Knative service: %w", err)
	}
	text, _, _ := unstructured.NestedString(object.Object, "status", "url")
	at, err := url.Parse(text)
	if err != nil {
		return fmt.Errorf("the Knative service's URL: %w", err)
	}
	s.host = at.Host
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Ready" && c["status"] == "True" && s.host != "" {
			return nil
		}
	}
	return fmt.Errorf("the Knative service is not Ready: %v", conditions)
}

// pullSidecar pulls Knative's own container of each pod on every node.
func (s *knativeSide) pullSidecar(ctx context.Context) error {
	configs := s.cluster.Kube.CoreV1().ConfigMaps(knativeNamespace)
	config, err := configs.Get(ctx, "config-deployment", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return errors.New("no Knative on the cluster: go run -C test/knative . install --cluster .../cluster.json")
	}
	if err != nil {
		return fmt.Errorf("settings of Knative: %w", err)
	}
	return s.cluster.Nodes.Pull(ctx, config.Data["queue-sidecar-image"])
}

// findIngress finds the address of Kourier for clients outside: its node port, on the node where it runs.
func (s *knativeSide) findIngress(ctx context.Context) error {
	service, err := s.cluster.Kube.CoreV1().Services(kourierNamespace).Get(ctx, "kourier", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the Service of Kourier: %w", err)
	}
	gateways, err := s.cluster.Kube.CoreV1().Pods(kourierNamespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app=3scale-kourier-gateway"})
	if err != nil {
		return fmt.Errorf("the gateway of Kourier: %w", err)
	}
	for _, port := range service.Spec.Ports {
		for _, p := range gateways.Items {
			if port.Port == 80 && port.NodePort != 0 && cluster.Ready(&p) {
				s.address = p.Status.HostIP + ":" + strconv.Itoa(int(port.NodePort))
				return nil
			}
		}
	}
	return errors.New("the Service of Kourier has no node port for port 80, or its gateway is not ready")
}

func (s *knativeSide) cold(ctx context.Context) (Sample, error) {
	at := time.Now()
	t, err := s.warm(ctx)
	if ctx.Err() != nil {
		return Sample{}, ctx.Err()
	}
	return newSample(at, t, err), nil
}

func (s *knativeSide) warm(ctx context.Context) (probe.Timing, error) {
	return s.cluster.Request(ctx, s.address, s.host)
}

// rest does nothing: Knative scales to zero by itself.
func (s *knativeSide) rest(context.Context) error { return nil }

// knativeSettings returns Knative's settings that can change the outcome, and the versions of its components.
func knativeSettings(
	ctx context.Context, c *cluster.Cluster,
) (settings map[string]any, versions map[string]string, err error) {
	settings, versions = map[string]any{"knative: " + windowAnnotation: windowValue}, map[string]string{}
	config, err := c.Kube.CoreV1().ConfigMaps(knativeNamespace).Get(ctx, "config-autoscaler", metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("settings of Knative: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(config.Data)) {
		if key != "_example" {
			settings["knative config-autoscaler: "+key] = config.Data[key]
		}
	}
	for _, namespace := range []string{knativeNamespace, kourierNamespace} {
		list, err := c.Kube.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
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
