// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/show/httpapi"
)

const (
	// podPatience is the time within which kubelet must know a pod that serves.
	podPatience = 15 * time.Second
	podPause    = 200 * time.Millisecond
)

// clusterService is a service of a cluster. It needs the user's rights to patch wangellservices/scale, to list and get
// pods, and to create and get pods/portforward.
type clusterService struct {
	controller      *httpapi.Client
	namespace, name string
	config          *rest.Config
	kube            kubernetes.Interface
	ports           atomic.Pointer[[]v1alpha1.Port] // of the service, once it is held
}

// NewService returns a service of the cluster that c reaches, whose leading controller has the client. It does not
// connect yet.
func NewService(c *rest.Config, controller *httpapi.Client, namespace, name string) (Service, error) {
	kube, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	return &clusterService{controller: controller, namespace: namespace, name: name, config: c, kube: kube}, nil
}

// Hold implements Service.
func (p *clusterService) Hold(ctx context.Context) (ended <-chan struct{}, release func(), err error) {
	st, ended, release, err := p.controller.Hold(ctx, p.full(), "")
	if err != nil {
		return nil, nil, err
	}
	ports := st.Service.Spec.PortList()
	p.ports.Store(&ports)
	return ended, release, nil
}

// Touch implements Service.
func (p *clusterService) Touch(ctx context.Context) error { return p.controller.Wake(ctx, p.full()) }

func (p *clusterService) full() string { return p.namespace + "/" + p.name }

// Link implements Service. A pod that serves already may still be unknown to the API server or starting to kubelet:
// such a one is tried again.
func (p *clusterService) Link(ctx context.Context) (Link, error) {
	for end := time.Now().Add(podPatience); ; {
		l, err := p.link(ctx)
		if err == nil || time.Now().After(end) {
			return l, err
		}
		select {
		case <-time.After(podPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *clusterService) link(ctx context.Context) (Link, error) {
	list, err := p.kube.CoreV1().Pods(p.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: v1alpha1.LabelService + "=" + p.name,
	})
	if err != nil {
		return nil, fmt.Errorf("pods of service %s/%s: %w", p.namespace, p.name, err)
	}
	pod := best(list.Items)
	if pod == nil {
		return nil, fmt.Errorf("service %s/%s: no pod of it runs: see 'kubectl wangell why %s'", p.namespace, p.name, p.name)
	}
	u := p.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).
		SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(p.config)
	if err != nil {
		return nil, err
	}
	plain := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	sockets, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, p.config)
	if err != nil {
		return nil, err
	}
	// Kubernetes before 1.31 has no WebSockets here, and some proxies let only one of the two through.
	dialer := portforward.NewFallbackDialerForStreaming(sockets, plain, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return &link{pods: p, pod: pod, conn: conn, targets: p.targets(pod)}, nil
}

// targets returns the ports on which a pod listens, by those of the service.
func (p *clusterService) targets(pod *corev1.Pod) map[uint16]uint16 {
	ports := p.ports.Load()
	if ports == nil {
		return nil
	}
	of := v1alpha1.TargetsIn(pod.Annotations[v1alpha1.AnnotationTargetPort])
	targets := make(map[uint16]uint16, len(*ports))
	for i, port := range *ports {
		targets[uint16(port.Number)] = cmp.Or(of[i], uint16(port.Target))
	}
	return targets
}

// best returns the pod that most likely serves: not one that ends, rather a ready one, and else the newest.
func best(pods []corev1.Pod) *corev1.Pod {
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !runs(&p) })
	if len(pods) == 0 {
		return nil
	}
	rank := func(p *corev1.Pod) int {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return 1
			}
		}
		return 0
	}
	first := slices.MaxFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
	return &first
}

// runs reports whether a pod is on a node and does not end.
func runs(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded &&
		p.Status.Phase != corev1.PodFailed
}

// link is a connection to kubelet for one pod.
type link struct {
	pods    *clusterService
	pod     *corev1.Pod
	conn    httpstream.Connection
	targets map[uint16]uint16 // ports of the pod, by those of the service
	last    atomic.Uint64
}

// Lives implements Link. If the API server does not answer, the pod is taken to run.
func (l *link) Lives(ctx context.Context) bool {
	select {
	case <-l.conn.CloseChan():
		return false
	default:
	}
	p, err := l.pods.kube.CoreV1().Pods(l.pod.Namespace).Get(ctx, l.pod.Name, metav1.GetOptions{})
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	return p.UID == l.pod.UID && runs(p)
}

// Pipe implements Link.
func (l *link) Pipe(conn net.Conn, port uint16) error {
	port = cmp.Or(l.targets[port], port)
	failed := func(err error) error {
		return fmt.Errorf("port %d of pod %s/%s: %w", port, l.pod.Namespace, l.pod.Name, err)
	}
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, strconv.FormatUint(l.last.Add(1), 10))
	problems, err := l.conn.CreateStream(headers)
	if err != nil {
		return failed(err)
	}
	defer l.conn.RemoveStreams(problems)
	_ = problems.Close() // nothing is written to it
	said := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(io.LimitReader(problems, 4<<10))
		said <- strings.TrimSpace(string(text))
	}()
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := l.conn.CreateStream(headers)
	if err != nil {
		_ = problems.Reset()
		return failed(err)
	}
	defer l.conn.RemoveStreams(data)
	over := make(chan struct{}, 2)
	go func() {
		if _, err := io.Copy(data, conn); err != nil {
			over <- struct{}{} // the client has gone
			return
		}
		_ = data.Close()
	}()
	go func() {
		_, _ = io.Copy(conn, data)
		over <- struct{}{}
	}()
	<-over
	_ = data.Reset() // kubelet discards what is left, and ends both streams
	select {
	case text := <-said:
		if text != "" {
			return failed(errors.New(text))
		}
	case <-l.conn.CloseChan():
	case <-time.After(releaseTimeout):
	}
	return nil
}

// Close implements Link.
func (l *link) Close() error { return l.conn.Close() }
