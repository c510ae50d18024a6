// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/monotime"
)

// side is one of those who are compared.
type side interface {
	name() string
	// prepare makes the service and returns when it can be asked.
	prepare(ctx context.Context) error
	// cold does one request while there is no pod. A lost request is no error but a sample.
	cold(ctx context.Context) (KnativeSample, error)
	// warm does one request more.
	warm(ctx context.Context) (Timing, error)
	// rest has the service go to zero; it may still have pods afterwards.
	rest(ctx context.Context) error
}

// helloPort is where the hello image listens.
const helloPort = 8080

// coldSample makes a sample of a request.
func coldSample(at time.Time, t Timing, err error) KnativeSample {
	s := KnativeSample{At: at, Connected: ms(t.Connected), FirstByte: ms(t.FirstByte), Done: ms(t.Done)}
	if err != nil {
		s.Error = err.Error()
	}
	return s
}

// wangellSide is a WangellService.
type wangellSide struct {
	cluster *labCluster
	image   string
	address string
	woken   metav1.Time // start of the last wake that was seen
}

const wangellName = "hello-wangell"

var wangellResource = schema.GroupVersionResource{Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: "wangellservices"}

func (s *wangellSide) name() string { return SideWangell }

func (s *wangellSide) prepare(ctx context.Context) error {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.Kind,
		"metadata": map[string]any{"name": wangellName, "namespace": s.cluster.namespace},
		"spec":     map[string]any{"image": s.image, "port": int64(80), "targetPort": int64(helloPort), "idleTimeout": int64(3600)},
	}}
	resource := s.cluster.dynamic.Resource(wangellResource).Namespace(s.cluster.namespace)
	if _, err := resource.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create a WangellService (is the chart installed?): %w", err)
	}
	return until(ctx, readyTimeout, func() error {
		service, err := s.get(ctx)
		if err != nil {
			return err
		}
		addr, err := netip.ParseAddr(service.Status.LoadBalancerIP)
		if err != nil {
			return errors.New("the WangellService has no address")
		}
		s.address = netip.AddrPortFrom(addr, 80).String()
		if !isTrue(service.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("the WangellService is not Ready: %+v", service.Status.Conditions)
		}
		return nil
	})
}

func isTrue(conditions []metav1.Condition, kind string) bool {
	for _, c := range conditions {
		if c.Type == kind {
			return c.Status == metav1.ConditionTrue
		}
	}
	return false
}

func (s *wangellSide) get(ctx context.Context) (*v1alpha1.WangellService, error) {
	object, err := s.cluster.dynamic.Resource(wangellResource).Namespace(s.cluster.namespace).Get(ctx, wangellName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get the WangellService: %w", err)
	}
	var service v1alpha1.WangellService
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &service); err != nil {
		return nil, fmt.Errorf("read the WangellService: %w", err)
	}
	return &service, nil
}

func (s *wangellSide) cold(ctx context.Context) (KnativeSample, error) {
	at := time.Now()
	t, err := s.warm(ctx)
	if ctx.Err() != nil {
		return KnativeSample{}, ctx.Err()
	}
	sample := coldSample(at, t, err)
	if err != nil {
		return sample, nil
	}
	// The status is written after the client was answered.
	return sample, until(ctx, readyTimeout, func() error {
		service, err := s.get(ctx)
		if err != nil {
			return err
		}
		last := service.Status.LastWake
		if last == nil || last.Start.Equal(&s.woken) || last.Result == string(lifecycle.ResultRunning) {
			return errors.New("the WangellService's status does not tell of this wake: the request may not have been cold")
		}
		s.woken, sample.Phases = last.Start, map[string]float64{}
		for _, p := range last.Phases {
			sample.Phases[p.Name] = float64(p.Ms)
		}
		return nil
	})
}

func (s *wangellSide) warm(ctx context.Context) (Timing, error) {
	return s.cluster.request(ctx, s.address, s.address)
}

// rest is `kubectl scale --replicas=0`, of a service that has become like any other: its pod was handed over to the
// Deployment.
func (s *wangellSide) rest(ctx context.Context) error {
	err := until(ctx, readyTimeout, func() error {
		d, err := s.cluster.kube.AppsV1().Deployments(s.cluster.namespace).Get(ctx, wangellName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("the Deployment of the WangellService: %w", err)
		}
		if d.Spec.Paused || d.Status.ReadyReplicas != 1 {
			return fmt.Errorf("its Deployment has %d pods that are Ready, paused: %t; want 1, false", d.Status.ReadyReplicas, d.Spec.Paused)
		}
		return nil
	})
	if err != nil {
		return err
	}
	resource := s.cluster.dynamic.Resource(wangellResource).Namespace(s.cluster.namespace)
	_, err = resource.Patch(ctx, wangellName, types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{}, "scale")
	if err != nil {
		return fmt.Errorf("scale the WangellService to zero: %w", err)
	}
	return until(ctx, zeroTimeout, func() error {
		service, err := s.get(ctx)
		if err != nil {
			return err
		}
		if service.Status.State != "Cold" || service.Status.Replicas != 0 {
			return fmt.Errorf("the WangellService is %s with %d replicas, want Cold with 0", service.Status.State, service.Status.Replicas)
		}
		return s.cluster.gone(ctx, SideWangell)
	})
}

// gone fails as long as a side has a pod.
func (c *labCluster) gone(ctx context.Context, side string) error {
	pods, err := c.pods(ctx)
	if err != nil {
		return err
	}
	if own := podsOf(pods, side); len(own) > 0 {
		return fmt.Errorf("pod %s of %s is still there", own[0].Name, side)
	}
	return nil
}

// floorSide is a pod made by hand.
type floorSide struct {
	cluster *labCluster
	image   string
	wangell *wangellSide // whose template is used; may be nil
	// template is what is started, source where it is from.
	template corev1.PodTemplateSpec
	source   string
	started  int
	address  string // of the last pod
}

func (s *floorSide) name() string { return SideFloor }

func (s *floorSide) prepare(ctx context.Context) error {
	if s.wangell == nil {
		no := false
		s.source = "a plain one: the image, no service account token, no service links"
		s.template.Spec = corev1.PodSpec{AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Containers: []corev1.Container{{Name: "hello", Image: s.image, Ports: []corev1.ContainerPort{{ContainerPort: helloPort}}}}}
		return nil
	}
	d, err := s.cluster.kube.AppsV1().Deployments(s.cluster.namespace).Get(ctx, wangellName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the Deployment of the WangellService: %w", err)
	}
	s.template, s.source = d.Spec.Template, "that of the WangellService's Deployment, without its labels"
	return nil
}

func (s *floorSide) cold(ctx context.Context) (KnativeSample, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s.started++
	pod := floorPod(s.template, s.cluster.namespace, "floor-"+strconv.Itoa(s.started))
	events, stop, err := s.cluster.nodes.watch(ctx, pod.Namespace, pod.Name)
	if err != nil {
		return KnativeSample{}, err
	}
	defer stop()
	at, begin := time.Now(), monotime.Now()
	if _, err := s.cluster.kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return KnativeSample{}, fmt.Errorf("create the floor's pod: %w", err)
	}
	seen := podEvents{phases: map[lifecycle.PhaseName]time.Time{}}
	// Before that there is no process that could listen.
	if err := seen.until(ctx, lifecycle.PhaseCreated, events); err != nil {
		return KnativeSample{}, err
	}
	address := netip.AddrPortFrom(seen.addr, helloPort)
	s.address = address.String()
	a := poll(ctx, s.cluster.client.Dialer().DialContext, address)
	if a.err != nil {
		return KnativeSample{}, fmt.Errorf("ask the floor's pod: %w", a.err)
	}
	dialled := a.dialled.Sub(begin)
	sample := coldSample(at, Timing{Connected: dialled + a.timing.Connected, FirstByte: dialled + a.timing.FirstByte, Done: dialled + a.timing.Done}, nil)
	sample.Phases = map[string]float64{}
	// The container had started before it answered, even if the runtime tells so afterwards.
	if err := seen.until(ctx, lifecycle.PhaseStarted, events); err != nil {
		return KnativeSample{}, err
	}
	for name, end := range seen.phases {
		sample.Phases[string(name)] = ms(end.Sub(at))
	}
	return sample, nil
}

func (s *floorSide) warm(ctx context.Context) (Timing, error) {
	return s.cluster.request(ctx, s.address, s.address)
}

func (s *floorSide) rest(ctx context.Context) error {
	err := s.cluster.kube.CoreV1().Pods(s.cluster.namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: labelSide + "=" + SideFloor})
	if err != nil {
		return fmt.Errorf("delete the floor's pod: %w", err)
	}
	return until(ctx, zeroTimeout, func() error { return s.cluster.gone(ctx, SideFloor) })
}

const (
	knativeNamespace = "knative-serving"
	kourierNamespace = "kourier-system"
	// windowAnnotation is how long Knative looks back before it scales; the shortest that it allows makes the way back to
	// zero short, and changes nothing about a cold request.
	windowAnnotation = "autoscaling.knative.dev/window"
	windowValue      = "6s"
)

var knativeResource = schema.GroupVersionResource{Group: "serving.knative.dev", Version: "v1", Resource: "services"}

// knativeName is the name of the service with and without token volume.
func knativeName(token bool) string {
	if token {
		return "hello-knative"
	}
	return "hello-knative-notoken"
}

// knativeSide is a Knative service behind Kourier.
type knativeSide struct {
	cluster       *labCluster
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
	spec := map[string]any{"containers": []any{map[string]any{"image": s.image,
		"ports": []any{map[string]any{"containerPort": int64(helloPort)}}}}}
	if !s.token {
		spec["automountServiceAccountToken"] = false
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.knative.dev/v1", "kind": "Service",
		"metadata": map[string]any{"name": knativeName(s.token), "namespace": s.cluster.namespace},
		"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{windowAnnotation: windowValue}}, "spec": spec}},
	}}
	resource := s.cluster.dynamic.Resource(knativeResource).Namespace(s.cluster.namespace)
	if _, err := resource.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create a Knative service: %w", err)
	}
	err := until(ctx, 2*readyTimeout, func() error {
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
	})
	if err != nil {
		return err
	}
	return s.findIngress(ctx)
}

// pullSidecar brings Knative's own container in each of its pods to every node.
func (s *knativeSide) pullSidecar(ctx context.Context) error {
	config, err := s.cluster.kube.CoreV1().ConfigMaps(knativeNamespace).Get(ctx, "config-deployment", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return errors.New("no Knative on the cluster: go run -C test/knative . install --cluster .../cluster.json")
	}
	if err != nil {
		return fmt.Errorf("settings of Knative: %w", err)
	}
	return s.cluster.nodes.pull(ctx, config.Data["queue-sidecar-image"])
}

// findIngress finds the way to Kourier from outside: its node port, on the node where it runs.
func (s *knativeSide) findIngress(ctx context.Context) error {
	service, err := s.cluster.kube.CoreV1().Services(kourierNamespace).Get(ctx, "kourier", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the Service of Kourier: %w", err)
	}
	gateways, err := s.cluster.kube.CoreV1().Pods(kourierNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=3scale-kourier-gateway"})
	if err != nil {
		return fmt.Errorf("the gateway of Kourier: %w", err)
	}
	for _, port := range service.Spec.Ports {
		for _, p := range gateways.Items {
			if port.Port == 80 && port.NodePort != 0 && ready(&p) {
				s.address = p.Status.HostIP + ":" + strconv.Itoa(int(port.NodePort))
				return nil
			}
		}
	}
	return errors.New("the Service of Kourier has no node port for port 80, or its gateway is not ready")
}

func (s *knativeSide) cold(ctx context.Context) (KnativeSample, error) {
	at := time.Now()
	t, err := s.warm(ctx)
	if ctx.Err() != nil {
		return KnativeSample{}, ctx.Err()
	}
	return coldSample(at, t, err), nil
}

func (s *knativeSide) warm(ctx context.Context) (Timing, error) {
	return s.cluster.request(ctx, s.address, s.host)
}

// rest does nothing: Knative scales to zero by itself.
func (s *knativeSide) rest(context.Context) error { return nil }
