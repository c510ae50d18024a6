// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime"
)

// pulling returns the pods that pull images.
func (w *world) pulling() []corev1.Pod {
	w.t.Helper()
	list, err := w.client.CoreV1().Pods("").List(context.Background(),
		metav1.ListOptions{LabelSelector: v1alpha1.LabelPulls})
	if err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// pull pulls a private image; kubelet changes the pod's status.
func (w *world) pull(ctx context.Context, kubelet func(*corev1.Pod)) error {
	w.t.Helper()
	s := w.service()
	s.UID = "uid"
	s.Spec.Image = ""
	s.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		ServiceAccountName: "account", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "mine"}, {Name: "other"}},
		Tolerations: []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}},
		Containers:  []corev1.Container{{Name: "app", Image: "r.example:5000/a/b:1", Command: []string{"/run"}}},
	}}
	done := make(chan error, 1)
	go func() {
		done <- w.r.PullImage(ctx, runtime.ImagePull{
			Service: s, Node: "n1", Image: "r.example:5000/a/b:1", Policy: corev1.PullIfNotPresent,
		})
	}()
	var err error
	w.until("the pull ends", func() bool {
		for _, o := range w.pulling() {
			kubelet(&o)
			_, _ = w.client.CoreV1().Pods(o.Namespace).Update(context.Background(), &o, metav1.UpdateOptions{})
		}
		select {
		case err = <-done:
			return true
		default:
			return false
		}
	})
	return err
}

func waits(reason, message string) func(*corev1.Pod) {
	return func(o *corev1.Pod) {
		o.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: pullContainer, Image: "r.example:5000/a/b:1", State: waiting(reason, message)},
		}
	}
}

// The pod has what kubelet needs to log in, and starts nothing. It is gone afterwards.
func TestAPodPullsAnImageAndIsDeleted(t *testing.T) {
	w := newWorld(t, 0)
	var pod corev1.Pod
	if err := w.pull(t.Context(), func(o *corev1.Pod) {
		pod = *o.DeepCopy()
		waits("CreateContainerConfigError", "container x not found")(o)
	}); err != nil {
		t.Fatal(err)
	}
	if got := w.pulling(); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
	s := pod.Spec
	if s.NodeName != "n1" || s.ServiceAccountName != "account" || len(s.ImagePullSecrets) != 2 ||
		len(s.Tolerations) != 1 || *s.AutomountServiceAccountToken || pod.Labels[v1alpha1.LabelService] != "" ||
		len(pod.OwnerReferences) != 1 || pod.OwnerReferences[0].UID != "uid" {
		t.Errorf("pod %+v", pod)
	}
	c := s.Containers[0]
	if c.Image != "r.example:5000/a/b:1" || len(c.Command) > 0 || len(c.VolumeMounts) > 0 ||
		c.Env[0].ValueFrom.ResourceFieldRef.ContainerName == c.Name || !*s.SecurityContext.RunAsNonRoot {
		t.Errorf("container %+v", c)
	}
}

// A controller deletes the pods that an earlier one has left, even if it pulls nothing itself. Others stay.
func TestPodsOfAnEarlierControllersPullsAreDeleted(t *testing.T) {
	w := newWorld(t, 0,
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "left", UID: "l",
			Labels: map[string]string{v1alpha1.LabelPulls: "gone"}}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "foreign", UID: "f"}})
	w.until("the pod is gone", func() bool { return len(w.pulling()) == 0 })
	if _, err := w.client.CoreV1().Pods("other").Get(t.Context(), "foreign", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// A pod that could not be deleted is deleted later, while those of pulls under way stay.
func TestPodsOfPullsAreDeletedOnceTheyCanBe(t *testing.T) {
	w := newWorld(t, 0)
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "other", UID: "o",
		Labels: map[string]string{v1alpha1.LabelPulls: "other"}}}
	defer w.r.pulls.begin("other/other")()
	if _, err := w.client.CoreV1().Pods("other").Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var refusals atomic.Int32
	w.client.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		return refusals.Add(1) <= 3, nil, errors.New("etcdserver: request timed out")
	})
	if err := w.pull(t.Context(), waits("CreateContainerConfigError", "container x not found")); err != nil {
		t.Fatal(err)
	}
	w.until("only the other pull's pod is left", func() bool {
		left := w.pulling()
		return len(left) == 1 && left[0].Name == "other"
	})
	if n := refusals.Load(); n < 4 {
		t.Errorf("%d deletions were tried", n)
	}
}

func TestAFailedPullByKubeletNamesSecretAndRegistry(t *testing.T) {
	w := newWorld(t, 0)
	for _, c := range []struct {
		kubelet      func(*corev1.Pod)
		reason, want string
	}{
		{waits("ErrImagePull", "failed to authorize: https://me:hunter2@r.example:5000/token: 401 Unauthorized"),
			cri.ReasonUnauthorized, "registry r.example:5000 refuses it (pull 401): check that Secret default/mine or " +
				"default/other exists and has a valid user and password for r.example:5000"},
		{waits("ImagePullBackOff", `Back-off pulling image "x": ErrImagePull: r.example/a/b:1: not found`),
			cri.ReasonNotFound, "not found in registry (pull 404): check spec.image"},
		{waits("ErrImagePull", "write /x: no space left on device"), cri.ReasonDiskFull, "no space left on device"},
		{func(o *corev1.Pod) { o.Status.Phase, o.Status.Reason = corev1.PodFailed, "OutOfpods" }, "",
			"node n1 does not take the pod that pulls it: OutOfpods"},
	} {
		err := w.pull(t.Context(), c.kubelet)
		var known *cri.ImageError
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") ||
			errors.As(err, &known) != (c.reason != "") || known != nil && known.Reason != c.reason {
			t.Errorf("got %v, want %s: %s", err, c.reason, c.want)
		}
		if got := w.pulling(); len(got) > 0 {
			t.Errorf("left: %v", got)
		}
	}
}

func TestAPullByKubeletEndsWithItsContext(t *testing.T) {
	w := newWorld(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	if err := w.pull(ctx, func(o *corev1.Pod) { waits("ContainerCreating", "")(o); cancel() }); !errors.Is(err,
		context.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := w.pulling(); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
	// Somebody deletes the pod.
	if err := w.pull(t.Context(), func(o *corev1.Pod) {
		_ = w.client.CoreV1().Pods(o.Namespace).Delete(context.Background(), o.Name, metav1.DeleteOptions{})
	}); !errors.Is(err, errPodGone) {
		t.Errorf("got %v", err)
	}
}
