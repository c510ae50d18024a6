// SPDX-License-Identifier: Apache-2.0

package coldkube

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
)

// floorSide is a pod made by hand.
type floorSide struct {
	cluster *cluster.Cluster
	image   string
	// likeWangell uses the template of the WangellService's Deployment, which must exist.
	likeWangell bool
	// template is what is started; source describes where it comes from.
	template corev1.PodTemplateSpec
	source   string
	started  int
	address  string // of the last pod
}

func (s *floorSide) name() string { return SideFloor }

func (s *floorSide) prepare(ctx context.Context) error {
	if !s.likeWangell {
		no := false
		s.source = "a plain one: the image, no service account token, no service links"
		s.template.Spec = corev1.PodSpec{
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Containers: []corev1.Container{{
				Name: "hello", Image: s.image, Ports: []corev1.ContainerPort{{ContainerPort: cluster.HelloPort}},
			}},
		}
		return nil
	}
	d, err := s.cluster.Kube.AppsV1().Deployments(s.cluster.Namespace).Get(ctx, wangellName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the Deployment of the WangellService: %w", err)
	}
	s.template, s.source = d.Spec.Template, "that of the WangellService's Deployment, without its labels"
	return nil
}

// floorPod makes a pod from a template, with labels that no controller and no daemon selects.
func floorPod(template corev1.PodTemplateSpec, namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{labelSide: SideFloor}},
		Spec:       *template.Spec.DeepCopy(),
	}
}

func (s *floorSide) cold(ctx context.Context) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, probe.Timeout)
	defer cancel()
	s.started++
	pod := floorPod(s.template, s.cluster.Namespace, "floor-"+strconv.Itoa(s.started))
	events, stop, err := s.cluster.Nodes.Watch(ctx, pod.Namespace, pod.Name)
	if err != nil {
		return Sample{}, err
	}
	defer stop()
	at, begin := time.Now(), monotime.Now()
	if _, err := s.cluster.Kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return Sample{}, fmt.Errorf("create the floor's pod: %w", err)
	}
	// Before the container is created, no process can listen.
	var seen cluster.PodEvents
	if err := seen.Until(ctx, lifecycle.PhaseCreated, events); err != nil {
		return Sample{}, err
	}
	address := netip.AddrPortFrom(seen.Addr, cluster.HelloPort)
	s.address = address.String()
	a := probe.Poll(ctx, s.cluster.Client.Dialer().DialContext, address)
	if a.Err != nil {
		return Sample{}, fmt.Errorf("ask the floor's pod: %w", a.Err)
	}
	dialled := a.Dialled.Sub(begin)
	sample := newSample(at, probe.Timing{Connected: dialled + a.Timing.Connected,
		FirstByte: dialled + a.Timing.FirstByte, Done: dialled + a.Timing.Done}, nil)
	sample.Phases = map[string]float64{}
	// The container started before it answered, even if the runtime reports so afterwards.
	if err := seen.Until(ctx, lifecycle.PhaseStarted, events); err != nil {
		return Sample{}, err
	}
	for name, end := range seen.Phases {
		sample.Phases[string(name)] = report.Milliseconds(end.Sub(at))
	}
	return sample, nil
}

func (s *floorSide) warm(ctx context.Context) (probe.Timing, error) {
	return s.cluster.Request(ctx, s.address, s.address)
}

func (s *floorSide) rest(ctx context.Context) error {
	err := s.cluster.Kube.CoreV1().Pods(s.cluster.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: labelSide + "=" + SideFloor})
	if err != nil {
		return fmt.Errorf("delete the floor's pod: %w", err)
	}
	return cluster.Until(ctx, cluster.ZeroTimeout, func() error { return gone(ctx, s.cluster, SideFloor) })
}
