// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime"
)

// pullContainer is the name of the container whose image is pulled.
const pullContainer = "image"

// neverThere names a container that the pod does not have. An environment variable refers to its limit: kubelet pulls
// the image, cannot build the environment, and creates no container.
const neverThere = "never-started-only-pulls-the-image"

// errPodGone is the error of a pull whose pod was deleted by somebody else.
var errPodGone = errors.New("the pod that pulls it was deleted")

// pulls are the pods that pull images.
type pulls struct {
	mu sync.Mutex
	// under are the names of pods whose pull is under way, with their namespaces: each is there before its pod exists.
	under map[string]bool
	left  chan struct{} // holds a value if a pod may be left that no pull of this controller needs
}

func newPulls() *pulls {
	p := &pulls{under: map[string]bool{}, left: make(chan struct{}, 1)}
	p.remain() // pods of an earlier controller
	return p
}

// begin marks a pod of this name as one that pulls an image, until the returned function is called.
func (p *pulls) begin(name string) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.under[name] = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.under, name)
	}
}

// underway reports whether a pod of this name pulls an image.
func (p *pulls) underway(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.under[name]
}

// remain notes that a pod may be left.
func (p *pulls) remain() {
	select {
	case p.left <- struct{}{}:
	default:
	}
}

// PullImage implements runtime.Cluster: it creates a pod on the node that never starts a container, waits until kubelet
// has pulled its image, or says why not, and deletes it. A pod that cannot be deleted, or whose creation the API
// server has not answered, is deleted later, by this controller or the next.
func (r *Runtime) PullImage(ctx context.Context, pull runtime.ImagePull) error {
	key := v1alpha1.KeyOf(pull.Service)
	id := ident{key, pull.Service.Namespace, pull.Service.Name}
	wanted := pullPod(pull)
	end := r.pulls.begin(wanted.Namespace + "/" + wanted.Name)
	pod, err := r.api.create(ctx, id, wanted)
	if err != nil {
		end()
		if errors.Is(err, runtime.ErrUnavailable) {
			time.AfterFunc(requestTimeout, r.pulls.remain) // the API server may still be at work
		}
		return err
	}
	err = r.awaitPull(ctx, pod)
	// Even if ctx has ended, but not if another controller leads, which sweeps by itself.
	_, deleteErr := r.api.deletePod(context.WithoutCancel(ctx), id, pod.Name, string(pod.UID), new(int64))
	end()
	if deleteErr != nil && !errors.Is(deleteErr, errRetired) {
		r.log.Warn("a pod that has pulled an image remains; trying again",
			"pod", pod.Namespace+"/"+pod.Name, "error", deleteErr)
		r.pulls.remain()
	}
	return err
}

// sweepPulls deletes pods that pulls have left behind, those of an earlier controller first, until writing ends.
func (r *Runtime) sweepPulls() {
	for pause := time.Duration(0); ; {
		select {
		case <-r.pulls.left:
		case <-r.api.writes.Done():
			return
		}
		err := r.sweepPullsOnce(r.api.writes)
		switch {
		case err == nil:
			pause = 0
		case r.api.writes.Err() == nil:
			r.log.Warn("pods that have pulled images remain; trying again", "error", err)
			pause = backoff.Next(pause, firstRetry, lastResizeRetry)
			time.AfterFunc(pause, r.pulls.remain)
		}
	}
}

// sweepPullsOnce deletes the pods that no pull of this controller needs.
func (r *Runtime) sweepPullsOnce(ctx context.Context) error {
	listing, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := r.cfg.Client.CoreV1().Pods(r.cfg.Namespace).List(listing, metav1.ListOptions{
		LabelSelector: v1alpha1.LabelPulls,
	})
	if err != nil {
		return fmt.Errorf("list pods that pull images: %w", err)
	}
	var errs []error
	for i := range list.Items {
		o := &list.Items[i]
		if r.pulls.underway(o.Namespace + "/" + o.Name) {
			continue
		}
		name := o.Labels[v1alpha1.LabelPulls]
		id := ident{v1alpha1.Key(o.Namespace + "/" + name), o.Namespace, name}
		_, err := r.api.deletePod(ctx, id, o.Name, string(o.UID), new(int64))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// awaitPull waits until kubelet has pulled the image of a pod or says why not.
func (r *Runtime) awaitPull(ctx context.Context, pod *corev1.Pod) error {
	pods := r.cfg.Client.CoreV1().Pods(pod.Namespace)
	only := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", pod.Name).String()}
	for {
		w, err := pods.Watch(ctx, only)
		if err != nil {
			return fmt.Errorf("watch the pod that pulls it: %w", err)
		}
		// A look after the watch has begun catches what happened before it.
		now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		done := err == nil && now.UID != pod.UID || apierrors.IsNotFound(err)
		if done {
			err = errPodGone
		} else if err == nil {
			done, err = pulled(now)
		}
		for !done && err == nil {
			var event watch.Event
			more := false
			select {
			case event, more = <-w.ResultChan():
			case <-ctx.Done():
			}
			if !more {
				break // the API server ends each watch after some minutes
			}
			o, ok := event.Object.(*corev1.Pod)
			switch {
			case !ok || o.UID != pod.UID:
			case event.Type == watch.Deleted:
				err = errPodGone
			default:
				done, err = pulled(o)
			}
		}
		w.Stop()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case done || err != nil:
			return err
		}
	}
}

// pulled reports whether kubelet has pulled the image of a pod, or why it cannot.
func pulled(o *corev1.Pod) (bool, error) {
	c := containerStatus(o, pullContainer)
	switch {
	case o.Status.Phase == corev1.PodFailed:
		return false, fmt.Errorf("node %s does not take the pod that pulls it: %s", o.Spec.NodeName,
			detail(o.Status.Message, o.Status.Reason))
	case c == nil:
		return false, nil
	case c.State.Waiting == nil:
		return true, nil // somebody has changed the pod, and its image is there
	}
	w := c.State.Waiting
	if containerReasons[w.Reason] != "" {
		return true, nil
	}
	if imageReasons[w.Reason] != "" {
		return false, pullFailure(o, c, detail(w.Message, w.Reason))
	}
	return false, nil
}

// pullFailure explains why kubelet cannot pull an image. If a registry refuses it, the pull secrets are named, and
// the registry's text, which may reveal too much, is left out.
func pullFailure(o *corev1.Pod, c *corev1.ContainerStatus, text string) error {
	e := cri.Explain(c.Image, errors.New(text))
	if e.Reason != cri.ReasonUnauthorized {
		return e
	}
	var secrets []string
	for _, s := range o.Spec.ImagePullSecrets {
		secrets = append(secrets, o.Namespace+"/"+s.Name)
	}
	registry := imageref.Registry(c.Image)
	advice := fmt.Sprintf("check that Secret %s exists and has a valid user and password for %s",
		strings.Join(secrets, " or "), registry)
	if len(secrets) == 0 {
		advice = "check the image's name, or give the pod or its service account imagePullSecrets"
	}
	return cri.NewImageError(e.Reason, fmt.Sprintf("registry %s refuses it (pull 401): %s", registry, advice), nil)
}

// pullPod returns the pod by which kubelet pulls an image. From the service's pods it has only the service account
// and the pull secrets. It complies with the strictest of the Pod Security Standards.
func pullPod(pull runtime.ImagePull) *corev1.Pod {
	s := pull.Service
	account, secrets, class := s.Spec.ServiceAccountName, []corev1.LocalObjectReference(nil), (*string)(nil)
	var tolerations []corev1.Toleration
	var annotations map[string]string
	if pull.Lazy {
		class, annotations = new(v1alpha1.LazyRuntime), map[string]string{v1alpha1.AnnotationHandler: v1alpha1.LazyRuntime}
	}
	if t := s.Spec.Template; t != nil {
		account, secrets = t.Spec.ServiceAccountName, t.Spec.ImagePullSecrets
		if !pull.Lazy {
			class = t.Spec.RuntimeClassName
		}
		tolerations = t.Spec.Tolerations
	}
	no, yes, now := false, true, int64(0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: randomName(s.Name + "-pulls-image-"),
			Labels: map[string]string{v1alpha1.LabelPulls: s.Name}, Annotations: annotations,
		},
		Spec: corev1.PodSpec{
			NodeName: pull.Node, RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &now,
			ServiceAccountName: account, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			ImagePullSecrets: secrets, RuntimeClassName: class, Tolerations: tolerations,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: pullContainer, Image: pull.Image, ImagePullPolicy: pull.Policy,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
				Env: []corev1.EnvVar{{Name: "NEVER", ValueFrom: &corev1.EnvVarSource{
					ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: neverThere, Resource: "limits.cpu"},
				}}},
			}},
		},
	}
	if s.UID != "" {
		pod.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.Kind, Name: s.Name, UID: s.UID},
		}
	}
	return pod
}
