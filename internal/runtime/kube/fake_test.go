// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

const patience = 60 * time.Second

// world is a Runtime with a fake API server and no node.
type world struct {
	t      *testing.T
	client *fake.Clientset
	r      *Runtime

	mu      sync.Mutex
	version int
	written []int32 // numbers written to the scale subresource of app
	fail    error   // answers these writes
	trouble []Trouble
	pods    int
	direct  bool                     // pods are created directly
	change  func(*appsv1.Deployment) // changes the Deployment of app; may be nil
}

func newWorld(t *testing.T, replicas int32, objects ...apiruntime.Object) *world {
	return newWorldWith(t, replicas, nil, objects...)
}

// newWorldWith returns a world whose Deployment was changed.
func newWorldWith(t *testing.T, replicas int32, change func(*appsv1.Deployment), objects ...apiruntime.Object) *world {
	w := &world{t: t, version: 1, change: change}
	w.client = fake.NewClientset(append(objects, w.deployment(replicas))...)
	w.client.PrependReactor("update", "deployments", func(a clienttesting.Action) (bool, apiruntime.Object, error) {
		update := a.(clienttesting.UpdateAction)
		scale, ok := update.GetObject().(*autoscalingv1.Scale)
		if !ok {
			return false, nil, nil
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.fail != nil {
			return true, nil, w.fail
		}
		w.version++
		w.written = append(w.written, scale.Spec.Replicas)
		out := scale.DeepCopy()
		out.ResourceVersion = strconv.Itoa(w.version)
		return true, out, w.client.Tracker().Update(a.GetResource(), w.deployment(scale.Spec.Replicas), "default")
	})
	w.open()
	t.Cleanup(func() { w.r.Close() })
	return w
}

func (w *world) open() {
	before := len(w.client.Actions())
	r, err := Open(w.t.Context(), Config{Client: w.client, ThroughDeployment: !w.direct,
		Trouble: func(_ v1alpha1.Key, t Trouble) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.trouble = append(w.trouble, t)
		}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.r = r
	// Tests add reactors, which must not happen during a request.
	w.until("pods that pull images were listed", func() bool {
		return slices.ContainsFunc(w.client.Actions()[before:], func(a clienttesting.Action) bool {
			list, ok := a.(clienttesting.ListAction)
			return ok && list.GetListRestrictions().Labels.String() == v1alpha1.LabelPulls
		})
	})
}

// deployment returns the Deployment of the service app.
func (w *world) deployment(replicas int32) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "app", UID: "d", Labels: map[string]string{v1alpha1.LabelService: "app"},
			ResourceVersion: strconv.Itoa(w.version),
		},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{
			Annotations: map[string]string{v1alpha1.AnnotationContainer: "app"},
		}}},
	}
	if w.change != nil {
		w.change(d)
	}
	return d
}

func (w *world) service() *v1alpha1.WangellService {
	s := &v1alpha1.WangellService{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"},
		Spec: v1alpha1.WangellServiceSpec{Image: "a/b:1", Port: 80}}
	v1alpha1.Default(s)
	return s
}

func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if holds() {
			return
		}
	}
	w.t.Fatalf("did not happen: %s", what)
}

func (w *world) writes() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.written)
}

// apiPod changes the next pod of app in the API, which report may have created already.
func (w *world) apiPod(change func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	w.mu.Lock()
	w.pods++
	name := fmt.Sprint("app-", w.pods)
	w.mu.Unlock()
	if o, err := w.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{}); err == nil {
		if change != nil {
			w.update(o, change)
		}
		return o
	}
	return w.create(name, change)
}

// create creates a pod of app in the API.
func (w *world) create(name string, change func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	yes := true
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name),
			Labels:      map[string]string{v1alpha1.LabelService: "app", v1alpha1.LabelSpecHash: "h"},
			Annotations: map[string]string{v1alpha1.AnnotationContainer: "app"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "app", UID: "s",
				Controller: &yes}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "a/b:1"}}},
	}
	if change != nil {
		change(o)
	}
	o, err := w.client.CoreV1().Pods("default").Create(context.Background(), o, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.until("the cached pod", func() bool {
		w.r.mu.Lock()
		defer w.r.mu.Unlock()
		return w.r.byUID[string(o.UID)] != nil
	})
	return o
}

// update changes a pod in the API, which stays on its node.
func (w *world) update(o *corev1.Pod, change func(*corev1.Pod)) {
	w.t.Helper()
	is, err := w.client.CoreV1().Pods(o.Namespace).Get(context.Background(), o.Name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	o.Spec.NodeName = is.Spec.NodeName
	change(o)
	if _, err := w.client.CoreV1().Pods("default").Update(context.Background(), o, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// report has the daemon of a pod's node report events of the pod. If the API does not have the pod, or on no node, it
// gets it on node n1 before.
func (w *world) report(uid string, events ...runtime.PodEvent) {
	w.t.Helper()
	node := w.place(uid)
	for _, e := range events {
		w.reportFrom(node, uid, e)
	}
}

// reportFrom has the daemon of a node report an event of a pod of app.
func (w *world) reportFrom(node, uid string, e runtime.PodEvent) {
	w.r.ReportPod(runtime.PodReport{
		Event: e, Name: uid, Container: "app", At: monotime.Now(), Code: 7,
		Pod: runtime.Pod{
			ID: uid, Service: "default/app", SpecHash: "h", Addr: netip.MustParseAddr("10.1.0.1"),
			Netns: "/run/netns/" + uid, Node: node, NodeAddr: netip.MustParseAddr("192.0.2.1"),
		},
	})
}

// place makes sure that the API has a pod and has bound it to a node, which it returns, unless the pod is gone.
func (w *world) place(uid string) string {
	w.t.Helper()
	find := func() (known, gone bool, name, node string) {
		w.r.mu.Lock()
		defer w.r.mu.Unlock()
		if p := w.r.byUID[uid]; p != nil {
			return true, false, p.name, p.node
		}
		return false, w.r.gone.has(uid), "", ""
	}
	known, gone, name, node := find()
	switch {
	case gone:
		return "n1"
	case node != "":
		return node
	case !known:
		if _, err := w.client.CoreV1().Pods("default").Get(context.Background(), uid, metav1.GetOptions{}); err != nil {
			w.create(uid, func(o *corev1.Pod) { o.Spec.NodeName = "n1" })
			return "n1"
		}
		w.until("the cached pod", func() bool { known, _, name, _ = find(); return known })
	}
	o, err := w.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.update(o, func(o *corev1.Pod) { o.Spec.NodeName = "n1" })
	w.until("the cached node", func() bool { _, _, _, node = find(); return node != "" })
	return node
}

const (
	network = runtime.PodNetworkReady
	created = runtime.PodContainerCreated
	started = runtime.PodContainerStarted
	exited  = runtime.PodContainerExited
	gone    = runtime.PodNetworkGone
)

// startResult is what a Start returned.
type startResult struct {
	pod runtime.Pod
	err error
}

// start begins a Start and returns once it has written its number.
func (w *world) start(ctx context.Context, hooks runtime.StartHooks) <-chan startResult {
	return w.startOf(ctx, w.service(), hooks)
}

func (w *world) startOf(ctx context.Context, s *v1alpha1.WangellService, hooks runtime.StartHooks) <-chan startResult {
	w.t.Helper()
	w.r.mu.Lock()
	waiting := len(w.r.ensureService("default/app").waiters)
	w.r.mu.Unlock()
	out := make(chan startResult, 1)
	go func() {
		p, err := w.r.Start(ctx, s, hooks)
		out <- startResult{p, err}
	}()
	w.until("a Start that waits for a pod", func() bool {
		w.r.mu.Lock()
		defer w.r.mu.Unlock()
		s := w.r.services["default/app"]
		return len(s.waiters) > waiting && !s.machine.pending() || len(out) > 0
	})
	return out
}

func get[T any](w *world, ch <-chan T) T {
	w.t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		w.t.Fatal("nothing was delivered")
		panic("unreachable")
	}
}

func nothing[T any](w *world, what string, ch <-chan T) {
	w.t.Helper()
	select {
	case v := <-ch:
		w.t.Errorf("%s: %+v", what, v)
	default:
	}
}

// up starts a pod, which a daemon reports to run.
func (w *world) up(uid string) runtime.Pod {
	w.t.Helper()
	out := w.start(context.Background(), runtime.StartHooks{})
	w.report(uid, network, created, started)
	got := get(w, out)
	if got.err != nil || got.pod.ID != uid {
		w.t.Fatalf("started %+v, %v", got.pod, got.err)
	}
	return got.pod
}
