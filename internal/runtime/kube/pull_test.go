// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime"
)

// pullWorld is a world in which kubelet says the same of each pod that pulls an image, once it exists.
func pullWorld(t *testing.T, existing ...*corev1.Pod) *world {
	w := newWorld(t, 0)
	for _, o := range existing {
		if _, err := w.client.CoreV1().Pods(o.Namespace).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

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
			if o.Name == "left" {
				continue
			}
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

// The pod has what kubelet needs to log in, and starts nothing. It is gone afterwards, as are those of an earlier
// controller; others stay.
func TestAPodPullsAnImageAndIsDeleted(t *testing.T) {
	left := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "left", UID: "l",
		Labels: map[string]string{v1alpha1.LabelPulls: "gone"}}}
	foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "foreign", UID: "f"}}
	w := pullWorld(t, left, foreign)
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
	if _, err := w.client.CoreV1().Pods("other").Get(t.Context(), "foreign", metav1.GetOptions{}); err != nil {
		t.Error(err)
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

func TestAFailedPullByKubeletNamesSecretAndRegistry(t *testing.T) {
	w := pullWorld(t)
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
	w := pullWorld(t)
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
