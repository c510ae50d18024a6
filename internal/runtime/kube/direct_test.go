// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

var (
	deploymentsGVR = appsv1.SchemeGroupVersion.WithResource("deployments")
	setsGVR        = appsv1.SchemeGroupVersion.WithResource("replicasets")
	podsGVR        = corev1.SchemeGroupVersion.WithResource("pods")
)

// grace is the default grace period of a pod.
const grace = v1alpha1.DefaultTerminationGracePeriodSeconds * time.Second

// directWorld is a world whose API server counts generations and logs requests in order. Its Deployment controller sees
// changes at once, and recognizes its ReplicaSets.
type directWorld struct {
	*world
	blind bool // the Deployment controller sees nothing
	// nodeLost makes a pod stay that is deleted with a grace: no kubelet ends it.
	nodeLost atomic.Bool
	// late has the ReplicaSet controller not see the pods of a wake: it creates one.
	late atomic.Bool

	logMu sync.Mutex
	log   []string
	deny  map[string]error // errors by request

	// Guarded by world.mu.
	names      map[string]string // the names of direct pods that the tests know, by their own
	unanswered bool              // the answer to the next creation of a pod is lost
}

func newDirectWorld(t *testing.T, change func(*appsv1.Deployment), objects ...apiruntime.Object) *directWorld {
	w := &directWorld{world: &world{t: t, version: 1, direct: true}, deny: map[string]error{}, names: map[string]string{}}
	d := w.deployment(0)
	d.Generation, d.Status.ObservedGeneration, d.Spec.Paused = 1, 1, true
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelService: "app"}}
	d.Spec.Template.Labels = map[string]string{v1alpha1.LabelService: "app", v1alpha1.LabelSpecHash: "h"}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "app", Image: "a/b:1"}}
	if change != nil {
		change(d)
	}
	w.client = fake.NewClientset(append(objects, d)...)
	w.client.PrependReactor("*", "*", w.react)
	w.open()
	t.Cleanup(func() { w.r.Close() })
	return w
}

// did logs a request, unless it is to fail.
func (w *directWorld) did(what string) error {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	if err := w.deny[what]; err != nil {
		return err
	}
	w.log = append(w.log, what)
	return nil
}

func (w *directWorld) done() string {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	return strings.Join(w.log, ", ")
}

func (w *directWorld) refuse(what string, err error) {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	w.deny[what] = err
}

// deploymentNow returns the Deployment as the API server has it.
func (w *directWorld) deploymentNow() *appsv1.Deployment {
	o, err := w.client.Tracker().Get(deploymentsGVR, "default", "app")
	if err != nil {
		w.t.Error(err)
		return &appsv1.Deployment{}
	}
	return o.(*appsv1.Deployment).DeepCopy()
}

// put changes the Deployment's spec; its controller sees it at once, unless it is blind.
func (w *directWorld) put(change func(*appsv1.Deployment)) *appsv1.Deployment {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.deploymentNow()
	w.version++
	change(d)
	d.Generation++
	d.ResourceVersion = strconv.Itoa(w.version)
	if !w.blind {
		d.Status.ObservedGeneration = d.Generation
	}
	if err := w.client.Tracker().Update(deploymentsGVR, d, "default"); err != nil {
		w.t.Error(err)
	}
	return d
}

func (w *directWorld) react(a clienttesting.Action) (bool, apiruntime.Object, error) {
	switch {
	case a.Matches("update", "deployments") && a.GetSubresource() == "scale":
		scale := a.(clienttesting.UpdateAction).GetObject().(*autoscalingv1.Scale).DeepCopy()
		if err := w.did(fmt.Sprint("scale ", scale.Spec.Replicas)); err != nil {
			return true, nil, err
		}
		scale.ResourceVersion = w.put(func(d *appsv1.Deployment) { d.Spec.Replicas = &scale.Spec.Replicas }).ResourceVersion
		return true, scale, nil
	case a.Matches("patch", "deployments"):
		var p struct {
			Spec struct {
				Paused                  bool
				ProgressDeadlineSeconds *int32
			}
		}
		if err := json.Unmarshal(a.(clienttesting.PatchAction).GetPatch(), &p); err != nil {
			return true, nil, err
		}
		if err := w.did(map[bool]string{true: "pause", false: "resume"}[p.Spec.Paused]); err != nil {
			return true, nil, err
		}
		if (p.Spec.ProgressDeadlineSeconds != nil) != p.Spec.Paused {
			w.t.Errorf("a Deployment whose spec.paused is %t has the deadline %v: its controller would write a condition",
				p.Spec.Paused, p.Spec.ProgressDeadlineSeconds)
		}
		return true, w.put(func(d *appsv1.Deployment) { d.Spec.Paused = p.Spec.Paused }), nil
	case a.Matches("create", "pods"):
		p := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod).DeepCopy()
		if p.GenerateName == "" && p.UID == "" {
			return w.createSingle(p)
		}
		if p.GenerateName == "" {
			return false, nil, nil // the test's own
		}
		return w.createDirect(p)
	case a.Matches("get", "pods"):
		w.mu.Lock()
		name := w.names[a.(clienttesting.GetAction).GetName()]
		w.mu.Unlock()
		if name == "" {
			return false, nil, nil
		}
		pod, err := w.client.Tracker().Get(podsGVR, "default", name)
		return true, pod, err
	case a.Matches("delete", "pods"):
		d := a.(clienttesting.DeleteActionImpl)
		waits := d.DeleteOptions.GracePeriodSeconds == nil || *d.DeleteOptions.GracePeriodSeconds > 0
		return waits && w.nodeLost.Load(), nil, w.did("delete " + d.Name)
	case a.Matches("create", "replicasets"):
		s := a.(clienttesting.CreateAction).GetObject().(*appsv1.ReplicaSet).DeepCopy()
		if err := w.did(fmt.Sprint("create set of ", *s.Spec.Replicas)); err != nil {
			return true, nil, err
		}
		s.UID, s.Annotations = types.UID(s.Name), map[string]string{revisionAnnotation: "1"} // the Deployment controller's
		if err := w.client.Tracker().Create(setsGVR, s, "default"); err != nil || !w.late.Load() {
			return true, s, err
		}
		return true, s, w.client.Tracker().Create(podsGVR, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "surplus", UID: "surplus", Labels: s.Spec.Template.Labels,
				OwnerReferences: []metav1.OwnerReference{
					*metav1.NewControllerRef(s, appsv1.SchemeGroupVersion.WithKind("ReplicaSet")),
				}},
			Spec: s.Spec.Template.Spec,
		}, "default")
	case a.Matches("delete", "replicasets"):
		policy := a.(clienttesting.DeleteActionImpl).DeleteOptions.PropagationPolicy
		if policy != nil && *policy == metav1.DeletePropagationOrphan {
			return false, nil, w.did("orphan set")
		}
		return false, nil, w.did("delete set")
	}
	return false, nil, nil
}

// createDirect creates a pod under a short name that tests know, unless the one of its own name exists. With unanswered
// set, the answer is lost.
func (w *directWorld) createDirect(p *corev1.Pod) (bool, apiruntime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.client.Tracker().Get(podsGVR, "default", w.names[p.Name]); err == nil {
		return true, nil, apierrors.NewAlreadyExists(corev1.Resource("pods"), p.Name)
	}
	if err := w.did("create pod"); err != nil {
		return true, nil, err
	}
	w.pods++
	short := fmt.Sprint("app-", w.pods)
	w.names[p.Name] = short
	p.Name, p.UID = short, types.UID(short)
	if err := w.client.Tracker().Create(podsGVR, p, "default"); err != nil {
		return true, nil, err
	}
	if w.unanswered {
		w.unanswered = false
		return true, nil, apierrors.NewTimeoutError("the answer is lost", 0)
	}
	return true, p, nil
}

// later makes the hand-over of direct pods due.
func (w *directWorld) later() {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	if dir := w.r.services["default/app"].machine.direct; dir != nil {
		dir.first, dir.last = dir.first.Add(-time.Hour), dir.last.Add(-time.Hour)
	}
}

// settled waits until these requests were made, and no others.
func (w *directWorld) settled(want string) {
	w.t.Helper()
	var got string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("did %s", got)
		}
	}()
	w.until(want, func() bool { got = w.done(); return got == want })
}

// A request for a pod is repeated after its answer was lost: it finds the pod. A pod that is known, or that ends, does
// not count.
func TestPodWhoseAnswerWasLostIsFound(t *testing.T) {
	t.Parallel()
	w := newDirectWorld(t, nil)
	pod, s := directPod(w.deploymentNow(), "hash"), &service{ident: ident{"default/app", "default", "app"}}
	if err := w.r.Close(); err != nil { // it would delete pods that nobody wants
		t.Fatal(err)
	}
	api := requests{client: w.client, log: slog.New(slog.DiscardHandler), writes: t.Context()}
	create := func(known ...string) (string, error) {
		of := map[string]bool{}
		for _, uid := range known {
			of[uid] = true
		}
		return api.createDirect(t.Context(), s.ident, pod, s.directNames(pod, of), of)
	}
	w.mu.Lock()
	w.unanswered = true
	w.mu.Unlock()
	if uid, err := create(); uid != "" || err == nil {
		t.Errorf("without an answer: %q, %v", uid, err)
	}
	for range 2 {
		if uid, err := create(); uid != "app-1" || err != nil {
			t.Errorf("again: %q, %v: want the pod that exists", uid, err)
		}
	}
	if uid, err := create("app-1"); uid != "app-2" || err != nil {
		t.Errorf("one more: %q, %v", uid, err)
	}
	ending, err := w.client.CoreV1().Pods("default").Get(t.Context(), "app-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.update(ending, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	if uid, err := create("app-2"); uid != "app-3" || err != nil {
		t.Errorf("beside one that ends: %q, %v", uid, err)
	}
}

func TestNamesOfDirectPodsAreHostNames(t *testing.T) {
	pod := &corev1.Pod{}
	for _, base := range []string{"app-5d4f-", strings.Repeat("long", 15) + "-5d4f-"} {
		pod.GenerateName = base
		seen := map[string]bool{}
		for k := range 200 {
			name := directName(pod, k)
			if errs := validation.IsDNS1123Label(name); len(errs) > 0 || !strings.HasPrefix(name, base[:9]) {
				t.Errorf("%q: %v", name, errs)
			}
			seen[name] = true
		}
		if len(seen) < 195 { // a name that comes twice is taken, and is left out
			t.Errorf("%d different names of 200", len(seen))
		}
	}
}

// A wake creates its pod and nothing else. Later, in this order, the Deployment is scaled, gets a ReplicaSet that
// selects the pod, and is resumed. When the service sleeps, the Deployment comes to rest.
func TestDirectPodIsHandedOver(t *testing.T) {
	t.Parallel()
	w := newDirectWorld(t, nil)
	w.up("app-1")
	w.settled("create pod")
	pod, err := w.client.CoreV1().Pods("default").Get(t.Context(), "app-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if hash == "" || pod.Labels[v1alpha1.LabelSpecHash] != "h" || pod.Spec.Containers[0].Image != "a/b:1" ||
		metav1.GetControllerOf(pod) != nil ||
		len(pod.OwnerReferences) != 1 || pod.GenerateName != "app-"+hash+"-" {
		t.Errorf("the pod is %+v", pod)
	}
	w.settled("create pod, scale 1, create set of 1, resume")
	w.until("nothing is under way", func() bool {
		w.r.mu.Lock()
		defer w.r.mu.Unlock()
		return w.r.starts == 0 && w.r.handOvers == 0
	})
	set, err := w.client.AppsV1().ReplicaSets("default").Get(t.Context(), "app-"+hash, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil || !selector.Matches(labels.Set(pod.Labels)) || !metav1.IsControlledBy(set, w.deploymentNow()) {
		t.Errorf("%v, the ReplicaSet is %+v", err, set)
	}
	// But for the hash its template is the Deployment's, which recognizes the ReplicaSet by it.
	template := set.Spec.Template.DeepCopy()
	delete(template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	if want := w.deploymentNow().Spec.Template; fmt.Sprint(*template) != fmt.Sprint(want) {
		t.Errorf("the template is %v, want %v", *template, want)
	}
	w.until("the hand-over", func() bool {
		return w.holds(func(s *service) bool { return s.machine.direct == nil && s.machine.written == 1 })
	})

	yes := true
	w.update(pod, func(p *corev1.Pod) {
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet",
			Name: set.Name, UID: set.UID, Controller: &yes})
	})
	w.until("the adoption", func() bool {
		w.r.mu.Lock()
		defer w.r.mu.Unlock()
		return w.r.byUID["app-1"].owner != ownerNone
	})

	stopped := make(chan error, 1)
	go func() { stopped <- w.r.Stop(t.Context(), "app-1", grace) }()
	w.settled("create pod, scale 1, create set of 1, resume, scale 0")
	set.Spec.Replicas = new(int32)
	if err := w.client.Tracker().Update(setsGVR, set, "default"); err != nil {
		t.Fatal(err)
	}
	if err := w.client.Tracker().Delete(podsGVR, "default", "app-1"); err != nil {
		t.Fatal(err)
	}
	if err := get(w.world, stopped); err != nil {
		t.Error(err)
	}
	w.settled("create pod, scale 1, create set of 1, resume, scale 0, pause, delete set")
	w.until("it is at rest", func() bool {
		return w.holds(func(s *service) bool {
			o := s.observe(time.Now())
			return o.deployment != nil && atRest(o.deployment, o.sets) && s.machine.stage == idle
		})
	})
	if again := directHash(w.deploymentNow()); again == hash {
		t.Error("the next wake's pods would be of the ReplicaSet that is gone")
	}
	w.up("app-2")
	w.settled("create pod, scale 1, create set of 1, resume, scale 0, pause, delete set, create pod")
}

// The pod of a service that sleeps before its hand-over, or whose wake is cancelled, is deleted; the service is at
// rest.
func TestDirectPodIsDeletedWhenTheServiceSleeps(t *testing.T) {
	t.Parallel()
	w := newDirectWorld(t, nil)
	w.up("app-1")
	stopped := make(chan error, 1)
	go func() { stopped <- w.r.Stop(t.Context(), "app-1", grace) }()
	if err := get(w.world, stopped); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out := w.start(ctx, runtime.StartHooks{})
	w.settled("create pod, delete app-1, create pod")
	cancel()
	if got := get(w.world, out); !errors.Is(got.err, context.Canceled) {
		t.Errorf("got %+v", got)
	}
	// A pod that was not cached yet when it was deleted is deleted again when it is.
	w.until("the deletion", func() bool {
		return strings.HasPrefix(w.done(),
			"create pod, delete app-1, create pod, delete app-2")
	})
	w.until("nothing is left", func() bool {
		return w.holds(func(s *service) bool {
			return s.machine.direct == nil && s.machine.written == 0 && s.machine.stage == idle
		})
	})
}

// A ReplicaSet controller that does not see the pod of a wake creates another one, which is deleted at once.
func TestPodBesideThatOfAWakeIsDeleted(t *testing.T) {
	t.Parallel()
	w := newDirectWorld(t, nil)
	w.late.Store(true)
	w.up("app-1")
	w.until("the surplus pod is deleted", func() bool { return strings.Contains(w.done(), "delete surplus") })
	w.until("the hand-over", func() bool {
		return w.holds(func(s *service) bool { return s.machine.direct == nil && s.machine.written == 1 })
	})
	if strings.Contains(w.done(), "delete app-1") || strings.Contains(w.done(), "scale 2") {
		t.Errorf("did %s", w.done())
	}
}

// Further pods that are wanted before the hand-over are direct ones, too, of the same ReplicaSet. When fewer are
// wanted, they are handed over, and the ReplicaSet chooses.
func TestDirectPodsAreOfOneReplicaSet(t *testing.T) {
	t.Parallel()
	w := newDirectWorld(t, nil)
	w.up("app-1")
	w.up("app-2")
	w.settled("create pod, create pod")
	var hashes []string
	for _, name := range []string{"app-1", "app-2"} {
		p, err := w.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, p.Labels[appsv1.DefaultDeploymentUniqueLabelKey])
	}
	if hashes[0] != hashes[1] {
		t.Errorf("the pods are of different ReplicaSets: %v", hashes)
	}
	go w.r.Stop(w.t.Context(), "app-2", grace) //nolint:errcheck // it waits for a controller that is not there
	w.until("the Deployment wants one", func() bool {
		return strings.Contains(w.done(),
			"scale 1, create set of 1, resume")
	})
}

// A direct pod that is deleted by others is replaced, as its ReplicaSet would do.
func TestDeletedDirectPodIsReplaced(t *testing.T) {
	t.Parallel()
	w := newDirectWorld(t, nil)
	w.up("app-1")
	if err := w.client.Tracker().Delete(podsGVR, "default", "app-1"); err != nil {
		t.Fatal(err)
	}
	w.settled("create pod, create pod")
}

// A new leader finds the direct pods of the previous one and hands them over, those of an older spec as such.
func TestNewLeaderHandsOverDirectPods(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"h", "older"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "app-1", UID: "app-1",
				Annotations: map[string]string{v1alpha1.AnnotationContainer: "app"},
				Labels: map[string]string{v1alpha1.LabelService: "app", v1alpha1.LabelSpecHash: spec,
					appsv1.DefaultDeploymentUniqueLabelKey: "x"},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.1", PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}}},
		}
		w := newDirectWorld(t, nil, pod)
		w.later()
		w.settled("scale 1, create set of 1, resume")
		if w.holds(func(s *service) bool { return s.machine.want != 1 }) {
			t.Error("the pod is not wanted")
		}
		set, err := w.client.AppsV1().ReplicaSets("default").Get(t.Context(), "app-x", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := set.Spec.Template.Labels[v1alpha1.LabelSpecHash]; got != spec {
			t.Errorf("the ReplicaSet of a pod of spec %q is of %q", spec, got)
		}
	}
}

// A new leader completes a hand-over of which only the Deployment had been scaled.
func TestNewLeaderCompletesAHandOver(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "app-1", UID: "app-1",
		Annotations: map[string]string{v1alpha1.AnnotationContainer: "app"},
		Labels: map[string]string{v1alpha1.LabelService: "app", v1alpha1.LabelSpecHash: "h",
			appsv1.DefaultDeploymentUniqueLabelKey: "x"},
	}}
	w := newDirectWorld(t, func(d *appsv1.Deployment) { one := int32(1); d.Spec.Replicas = &one }, pod)
	w.later()
	w.until("the hand-over", func() bool { return strings.HasSuffix(w.done(), "scale 1, create set of 1, resume") })
}

// A hand-over that fails is tried again. No ReplicaSet is created, which the Deployment controller would scale to zero,
// until that has seen that pods are wanted.
func TestHandOverIsTriedAgainWhenItFails(t *testing.T) {
	t.Parallel()
	w := newDirectWorld(t, nil)
	w.refuse("scale 1", errors.New("no"))
	w.up("app-1")
	w.later()
	w.until("the first try", func() bool { return w.holds(func(s *service) bool { return s.machine.direct.announced }) })
	w.mu.Lock()
	w.blind = true
	w.mu.Unlock()
	w.refuse("scale 1", nil)
	w.settled("create pod, scale 1")
	w.refuse("resume", errors.New("no"))
	w.mu.Lock()
	w.blind = false
	w.mu.Unlock()
	if strings.Contains(w.done(), "set") {
		t.Error("there is a ReplicaSet that the Deployment controller would have scaled to zero")
	}
	w.put(func(*appsv1.Deployment) {})
	w.until("the ReplicaSet", func() bool {
		return strings.HasSuffix(w.done(), "create set of 1") || strings.Count(w.done(), "scale") > 1
	})
	w.refuse("resume", nil)
	w.until("the resumption", func() bool { return strings.HasSuffix(w.done(), "resume") })
}

// A Start is not retryable when its pod is refused. It is when the API server cannot create the pod now.
func TestRefusedPodIsNotRetried(t *testing.T) {
	t.Parallel()
	w := newDirectWorld(t, nil)
	resource := corev1.Resource("pods")
	w.refuse("create pod", apierrors.NewForbidden(resource, "app-1", errors.New("exceeded quota: pods=0")))
	_, err := w.r.Start(t.Context(), w.service(), runtime.StartHooks{})
	if err == nil || errors.Is(err, runtime.ErrUnavailable) ||
		!strings.Contains(err.Error(), "service default/app: create a pod") || strings.Contains(err.Error(), "ClusterRole") {
		t.Errorf("got %v", err)
	}
	w.refuse("create pod", apierrors.NewForbidden(resource, "", errors.New(`User "x" cannot create resource "pods"`)))
	if _, err = w.r.Start(t.Context(), w.service(), runtime.StartHooks{}); err == nil ||
		!strings.Contains(err.Error(), "ClusterRole") {
		t.Errorf("got %v", err)
	}
	w.refuse("create pod", apierrors.NewServiceUnavailable("no"))
	if _, err = w.r.Start(t.Context(), w.service(), runtime.StartHooks{}); !errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	w.refuse("create pod", nil)
	w.up("app-1")
}

// A Start is retryable in a namespace that is so new that it has no service account "default" yet. An account that the
// user forgot to create is reported at once.
func TestNewNamespaceGetsItsServiceAccount(t *testing.T) {
	t.Parallel()
	for account, retryable := range map[string]bool{"": true, "default": true, "mine": false} {
		w := newDirectWorld(t, func(d *appsv1.Deployment) { d.Spec.Template.Spec.ServiceAccountName = account })
		w.refuse("create pod", apierrors.NewForbidden(corev1.Resource("pods"), "app-1", fmt.Errorf(
			"error looking up service account default/%s: serviceaccount %q not found", account, account)))
		_, err := w.r.Start(t.Context(), w.service(), runtime.StartHooks{})
		if err == nil || errors.Is(err, runtime.ErrUnavailable) != retryable ||
			!strings.Contains(err.Error(), "error looking up service account") {
			t.Errorf("account %q: got %v", account, err)
		}
	}
}

// emptySet returns a ReplicaSet of app's Deployment that wants no pod and has this many.
func emptySet(has int32) *appsv1.ReplicaSet {
	yes := true
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "app-s", UID: "s", Labels: map[string]string{v1alpha1.LabelService: "app"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "app", UID: "d",
				Controller: &yes}},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: new(int32)}, Status: appsv1.ReplicaSetStatus{Replicas: has},
	}
}

// A Deployment that is not at rest is scaled, and resumed if it was paused. Without direct pods, none is left at rest.
func TestDeploymentThatIsNotAtRestIsScaled(t *testing.T) {
	t.Parallel()
	none, set := int32(0), emptySet(0)
	for name, c := range map[string]struct {
		change func(*appsv1.Deployment)
		sets   []*appsv1.ReplicaSet
	}{
		"not paused": {change: func(d *appsv1.Deployment) { d.Spec.Paused = false }},
		"wants pods": {change: func(d *appsv1.Deployment) { one := int32(1); d.Spec.Replicas = &one }},
		"a change that its controller has not seen": {change: func(d *appsv1.Deployment) { d.Generation++ }},
		"a ReplicaSet":     {sets: []*appsv1.ReplicaSet{set}},
		"is being deleted": {change: func(d *appsv1.Deployment) { d.DeletionTimestamp = &metav1.Time{} }},
	} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 1},
			Spec: appsv1.DeploymentSpec{Paused: true, Replicas: &none}}
		d.Status.ObservedGeneration = 1
		if !atRest(d, nil) {
			t.Fatal("the unchanged Deployment is not at rest")
		}
		if c.change != nil {
			c.change(d)
		}
		if atRest(d, c.sets) {
			t.Errorf("%s: it is at rest", name)
		}
	}

	w := newDirectWorld(t, func(d *appsv1.Deployment) { d.Generation = 2 }) // not seen by its controller
	w.up("app-1")
	w.until("the resumption", func() bool { return strings.HasPrefix(w.done(), "scale 1, resume") })

	w = &directWorld{world: &world{t: t, version: 1}, deny: map[string]error{}, names: map[string]string{}}
	d := w.deployment(0)
	d.Spec.Paused = true
	w.client = fake.NewClientset(d)
	w.client.PrependReactor("*", "*", w.react)
	w.open()
	defer w.r.Close()
	w.settled("resume")
}

// A ReplicaSet that still has pods is not deleted.
func TestRestWaitsForThePodsOfAReplicaSet(t *testing.T) {
	t.Parallel()
	set := emptySet(1)
	w := newDirectWorld(t, func(d *appsv1.Deployment) { d.Spec.Paused = false }, set)
	w.settled("pause")
	gone := set.DeepCopy()
	gone.Status.Replicas = 0
	if err := w.client.Tracker().Update(setsGVR, gone, "default"); err != nil {
		t.Fatal(err)
	}
	w.settled("pause, delete set")
	if slices.Contains(strings.Split(w.done(), ", "), "resume") {
		t.Error("the Deployment was resumed")
	}
}
