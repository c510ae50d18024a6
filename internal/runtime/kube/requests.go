// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/reservation"
	"wangell.loutres.me/internal/runtime"
)

// requestTimeout bounds a request to the API server: one that does not answer must not hold up other work.
const requestTimeout = 5 * time.Second

// victimPatch makes a pod the first that its ReplicaSet deletes among those that are ready
// (https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost).
const victimPatch = `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-2147483648"}}}`

// NoProgressDeadline is the progressDeadlineSeconds of a Deployment without a deadline
// (pkg/controller/deployment/util of Kubernetes: HasProgressDeadline).
const NoProgressDeadline = math.MaxInt32

// errRetired is returned for a write after Retire.
var errRetired = errors.New("another controller may lead: this one has stopped writing")

// requests makes requests to the API server, each with a timeout. Errors name the service and the request.
type requests struct {
	client kubernetes.Interface
	log    *slog.Logger
	writes context.Context // ends when nothing may be written any more
}

// forWrite returns the context of a request that changes something.
func (q *requests) forWrite(ctx context.Context, k v1alpha1.Key, doing string) (context.Context, context.CancelFunc,
	error) {
	if q.writes.Err() != nil {
		return nil, nil, fmt.Errorf("service %s: %s: %w: %w", k, doing, runtime.ErrUnavailable, errRetired)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	stop := context.AfterFunc(q.writes, cancel)
	return ctx, func() { stop(); cancel() }, nil
}

// apiError adds the purpose of a request to its error. An error that another attempt may overcome becomes
// ErrUnavailable.
func apiError(k v1alpha1.Key, doing string, err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("service %s: %s: %w", k, doing, err)
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		return fmt.Errorf("service %s: %s: %w: check the controller's ClusterRole", k, doing, err)
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return fmt.Errorf("service %s: %s: %w", k, doing, err)
	}
	// Also after NotFound: the operator creates the Deployment again.
	return fmt.Errorf("service %s: %s: %w: %w", k, doing, runtime.ErrUnavailable, err)
}

// scale writes the number of replicas of a Deployment, and returns the new resource version.
func (q *requests) scale(ctx context.Context, id ident, replicas int32) (version uint64, err error) {
	begin := time.Now()
	ctx, cancel, err := q.forWrite(ctx, id.key, "write replicas")
	if err != nil {
		return 0, err
	}
	defer cancel()
	written, err := q.client.AppsV1().Deployments(id.namespace).UpdateScale(ctx, id.name, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: id.namespace, Name: id.name},
		Spec:       autoscalingv1.ScaleSpec{Replicas: replicas},
	}, metav1.UpdateOptions{})
	q.log.Debug("replicas written",
		"service", string(id.key), "replicas", replicas, "took", time.Since(begin), "error", err)
	if err != nil {
		return 0, apiError(id.key, fmt.Sprintf("write replicas %d of Deployment %s", replicas, id.name), err)
	}
	return parseVersion(written.ResourceVersion), nil
}

// setPaused pauses or resumes a Deployment, only at this resource version of it unless that is empty. While it is
// paused, it has no deadline for its progress: otherwise its controller would write a condition when it is paused, and
// one more when it is resumed.
func (q *requests) setPaused(ctx context.Context, id ident, paused bool, version string) error {
	ctx, cancel, err := q.forWrite(ctx, id.key, "set spec.paused")
	if err != nil {
		return err
	}
	defer cancel()
	deadline := "null" // the API server's default
	if paused {
		deadline = strconv.Itoa(NoProgressDeadline)
	}
	patch := fmt.Sprintf(`"spec":{"paused":%t,"progressDeadlineSeconds":%s}}`, paused, deadline)
	if version != "" {
		patch = fmt.Sprintf(`"metadata":{"resourceVersion":%q},`, version) + patch
	}
	patch = "{" + patch
	_, err = q.client.AppsV1().Deployments(id.namespace).
		Patch(ctx, id.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return apiError(id.key, fmt.Sprintf("set spec.paused of Deployment %s to %t", id.name, paused), err)
	}
	return nil
}

// createPod returns the UID of the pod that it creates.
func (q *requests) createPod(ctx context.Context, id ident, pod *corev1.Pod) (uid string, err error) {
	created, err := q.create(ctx, id, pod)
	if err != nil {
		return "", err
	}
	return string(created.UID), nil
}

// directTries is how many names createDirect tries: more are taken only by pods of others.
const directTries = 20

// createDirect creates a direct pod with the next free name, or finds it if an earlier request has created it. It
// returns its UID. known are the UIDs of other direct pods.
func (q *requests) createDirect(
	ctx context.Context, id ident, pod *corev1.Pod, names func() string, known map[string]bool,
) (uid string, err error) {
	for range directTries {
		pod := pod.DeepCopy()
		pod.Name = names()
		uid, err = q.createPod(ctx, id, pod)
		if !apierrors.IsAlreadyExists(err) {
			return uid, err
		}
		found, getErr := q.pod(ctx, id, pod.Name)
		if getErr != nil {
			return "", getErr
		}
		if found != nil && !known[string(found.UID)] && sameDirect(found, pod) {
			return string(found.UID), nil
		}
	}
	return "", err
}

// sameDirect reports whether an existing pod is the one that a request would have created, and is not ending.
func sameDirect(found, wanted *corev1.Pod) bool {
	for _, label := range []string{appsv1.DefaultDeploymentUniqueLabelKey, v1alpha1.LabelService} {
		if found.Labels[label] != wanted.Labels[label] {
			return false
		}
	}
	over := found.Status.Phase == corev1.PodFailed || found.Status.Phase == corev1.PodSucceeded
	return found.DeletionTimestamp == nil && !over
}

// pod returns a pod as the API server has it; nil if it has none of this name.
func (q *requests) pod(ctx context.Context, id ident, name string) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pod, err := q.client.CoreV1().Pods(id.namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return pod, nil
	case apierrors.IsNotFound(err):
		return nil, nil
	}
	return nil, apiError(id.key, "read pod "+name, err)
}

// create creates a pod and returns it as it was created.
func (q *requests) create(ctx context.Context, id ident, pod *corev1.Pod) (*corev1.Pod, error) {
	ctx, cancel, err := q.forWrite(ctx, id.key, "create a pod")
	if err != nil {
		return nil, err
	}
	defer cancel()
	created, err := q.client.CoreV1().Pods(id.namespace).Create(ctx, pod, metav1.CreateOptions{})
	switch {
	case err == nil:
		return created, nil
	case awaitsDefaultAccount(pod, err):
		return nil, fmt.Errorf("service %s: create a pod: %w: %w", id.key, runtime.ErrUnavailable, err)
	case apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "cannot create resource"):
		// The pod is refused by a quota or Pod Security; the controller's rights are fine.
		return nil, fmt.Errorf("service %s: create a pod: %w", id.key, err)
	}
	return nil, apiError(id.key, "create a pod", err)
}

// awaitsDefaultAccount reports whether a pod was refused because its namespace is new: the controller manager creates
// the service account "default" a moment after the namespace. Any other account has to be created by the user.
func awaitsDefaultAccount(pod *corev1.Pod, err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "error looking up service account") &&
		(pod.Spec.ServiceAccountName == "" || pod.Spec.ServiceAccountName == "default")
}

// deletePod deletes a pod with seconds of grace; nil means those in its spec. It reports whether the pod was gone
// already.
func (q *requests) deletePod(ctx context.Context, id ident, name, uid string, seconds *int64) (gone bool, err error) {
	ctx, cancel, err := q.forWrite(ctx, id.key, "delete pod "+name)
	if err != nil {
		return false, err
	}
	defer cancel()
	err = q.client.CoreV1().Pods(id.namespace).Delete(ctx, name, metav1.DeleteOptions{
		GracePeriodSeconds: seconds, Preconditions: metav1.NewUIDPreconditions(uid),
	})
	switch {
	case err == nil:
		return false, nil
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return true, nil
	}
	return false, apiError(id.key, "delete pod "+name, err)
}

// podsWithHash lists pods by their label pod-template-hash.
func (q *requests) podsWithHash(ctx context.Context, id ident, hash string) ([]corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := q.client.CoreV1().Pods(id.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: appsv1.DefaultDeploymentUniqueLabelKey + "=" + hash,
	})
	if err != nil {
		return nil, apiError(id.key, "list its pods", err)
	}
	return list.Items, nil
}

// markVictim makes the ReplicaSet of a pod delete it before others.
func (q *requests) markVictim(ctx context.Context, id ident, name string) error {
	ctx, cancel, err := q.forWrite(ctx, id.key, "mark pod "+name)
	if err != nil {
		return err
	}
	defer cancel()
	_, err = q.client.CoreV1().Pods(id.namespace).
		Patch(ctx, name, types.MergePatchType, []byte(victimPatch), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return apiError(id.key, "mark pod "+name, err)
	}
	return nil
}

// reserve changes the requests of a pod, or the annotation with them. It returns the changed pod.
func (q *requests) reserve(ctx context.Context, id ident, name string, step reservation.Step) (*corev1.Pod, error) {
	ctx, cancel, err := q.forWrite(ctx, id.key, "resize pod "+name)
	if err != nil {
		return nil, err
	}
	defer cancel()
	var subresources []string
	if step.Resize {
		subresources = []string{"resize"}
	}
	return q.client.CoreV1().Pods(id.namespace).
		Patch(ctx, name, types.StrategicMergePatchType, step.Patch, metav1.PatchOptions{}, subresources...)
}

// createSet creates a ReplicaSet, unless it exists.
func (q *requests) createSet(ctx context.Context, id ident, set *appsv1.ReplicaSet) error {
	ctx, cancel, err := q.forWrite(ctx, id.key, "create ReplicaSet "+set.Name)
	if err != nil {
		return err
	}
	defer cancel()
	_, err = q.client.AppsV1().ReplicaSets(id.namespace).Create(ctx, set, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return apiError(id.key, "create ReplicaSet "+set.Name, err)
	}
	return nil
}

// deleteSet deletes a ReplicaSet at the resource version that it has here. Its pods stay if orphan is set.
func (q *requests) deleteSet(ctx context.Context, id ident, set *appsv1.ReplicaSet, orphan bool) error {
	propagation := metav1.DeletePropagationBackground
	if orphan {
		propagation = metav1.DeletePropagationOrphan
	}
	ctx, cancel, err := q.forWrite(ctx, id.key, "delete ReplicaSet "+set.Name)
	if err != nil {
		return err
	}
	defer cancel()
	err = q.client.AppsV1().ReplicaSets(id.namespace).Delete(ctx, set.Name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &set.UID, ResourceVersion: &set.ResourceVersion},
		PropagationPolicy: &propagation,
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return apiError(id.key, "delete ReplicaSet "+set.Name, err)
	}
	return nil
}

// nodeReady reports whether a node exists and is ready.
func (q *requests) nodeReady(ctx context.Context, id ident, name, pod string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	node, err := q.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, apiError(id.key, "look at node "+name+" of pod "+pod, err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, nil
		}
	}
	return false, nil
}
