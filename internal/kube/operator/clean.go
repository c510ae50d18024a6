// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/reservation"
)

// cleanPause is the pause between two looks at controllers that are ending.
const cleanPause = 500 * time.Millisecond

// CleanConfig configures Clean.
type CleanConfig struct {
	// Rest reaches the API server, with the rights of a controller.
	Rest *rest.Config
	// Controllers is the Deployment that runs the controllers. The zero value: none run.
	Controllers Name
	// Namespace is the only one whose services are cleaned; empty for all.
	Namespace string
	// Log may be nil.
	Log *slog.Logger
}

// Clean prepares a cluster for the removal of Wangell. It scales the controllers to zero, waits until they have ended,
// and then undoes what they have done to objects that stay: it removes the finalizer of revisions, which could not be
// deleted without a controller, gives pods the requests back that they gave away when they were frozen, and has the
// status of each service say that nothing serves it.
//
// It may be called again after an error. If ctx ends before the controllers have ended, nothing else is changed.
func Clean(ctx context.Context, cfg CleanConfig) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	if err := autoscalingv1.AddToScheme(scheme); err != nil {
		return err
	}
	api, err := client.New(cfg.Rest, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("client of the API server %s: %w", cfg.Rest.Host, err)
	}
	c := cleaner{client: api, log: cfg.Log, namespace: cfg.Namespace}
	if cfg.Controllers != (Name{}) {
		if err := c.stopControllers(ctx, cfg.Controllers); err != nil {
			return fmt.Errorf("stop the controllers: %w", err)
		}
	}
	return errors.Join(c.releaseRevisions(ctx), c.restoreRequests(ctx), c.sayRemoved(ctx, time.Now()))
}

// cleaner carries out Clean.
type cleaner struct {
	client    client.Client
	log       *slog.Logger
	namespace string
}

// stopControllers scales the controllers to zero and returns once none of their pods is left. A controller that ran on
// would take everything back.
func (c *cleaner) stopControllers(ctx context.Context, name Name) error {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	err := c.client.Get(ctx, client.ObjectKeyFromObject(d), d)
	if apierrors.IsNotFound(err) {
		c.log.Info("there are no controllers", "deployment", name.String())
		return nil
	} else if err != nil {
		return err
	}
	// The subresource, which controllers may write, has no optimistic lock without a resource version.
	zero := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	if err := c.client.SubResource("scale").Update(ctx, d, client.WithSubResourceBody(zero)); err != nil {
		return fmt.Errorf("scale Deployment %s to 0: %w", name, err)
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return fmt.Errorf("deployment %s: %w", name, err)
	}
	for {
		left, err := c.running(ctx, name.Namespace, selector)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			c.log.Info("the controllers have ended", "deployment", name.String())
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not end: %w: if its node is gone, delete it with kubectl delete pod --force",
				strings.Join(left, ", "), context.Cause(ctx))
		case <-time.After(cleanPause):
		}
	}
}

// running returns the pods that a selector selects and that have not ended, as "pod NAME on node NODE".
func (c *cleaner) running(ctx context.Context, namespace string, selector labels.Selector) (found []string, err error) {
	var pods corev1.PodList
	err = c.client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return nil, fmt.Errorf("list the pods of the controllers: %w", err)
	}
	for _, p := range pods.Items {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			found = append(found, fmt.Sprintf("pod %s on node %s", p.Name, p.Spec.NodeName))
		}
	}
	return found, nil
}

// releaseRevisions removes the finalizer of revisions.
func (c *cleaner) releaseRevisions(ctx context.Context) error {
	var services v1alpha1.WangellServiceList
	err := c.client.List(ctx, &services, client.InNamespace(c.namespace))
	if err != nil {
		return fmt.Errorf("list WangellServices: %w", err)
	}
	var failed []error
	for i := range services.Items {
		s := &services.Items[i]
		if !isKept(s) {
			continue
		}
		name := Name{s.Namespace, s.Name}
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			err := writeKept(ctx, c.client, s, false)
			if apierrors.IsConflict(err) {
				if err := c.client.Get(ctx, client.ObjectKeyFromObject(s), s); err != nil {
					return err
				}
			}
			return err
		})
		if client.IgnoreNotFound(err) != nil {
			failed = append(failed, fmt.Errorf("service %s: finalizer %s: %w", name, v1alpha1.FinalizerRevision, err))
			continue
		}
		c.log.Info("finalizer removed", "service", name.String())
	}
	return errors.Join(failed...)
}

// removedMessage is what a service says once Wangell is gone.
const removedMessage = "Wangell was uninstalled: nothing serves this address, wakes the service or stops its pods; " +
	"install it again, or delete the service"

// sayRemoved has all services say that Wangell is gone. The next controller writes their status anew.
func (c *cleaner) sayRemoved(ctx context.Context, now time.Time) error {
	var services v1alpha1.WangellServiceList
	if err := c.client.List(ctx, &services, client.InNamespace(c.namespace)); err != nil {
		return fmt.Errorf("list WangellServices: %w", err)
	}
	var failed []error
	for i := range services.Items {
		s := &services.Items[i]
		next := s.DeepCopy()
		next.Status.Message = removedMessage
		for _, name := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionAwake} {
			state := condition(name, false, "Uninstalled", removedMessage)
			state.ObservedGeneration, state.LastTransitionTime = s.Generation, metav1.NewTime(now.Truncate(time.Second))
			apimeta.SetStatusCondition(&next.Status.Conditions, state)
		}
		err := c.client.Status().Patch(ctx, next, client.MergeFrom(s), client.FieldOwner(fieldManager))
		if client.IgnoreNotFound(err) != nil {
			failed = append(failed, fmt.Errorf("status of service %s/%s: %w", s.Namespace, s.Name, err))
		}
	}
	c.log.Info("services say that nothing serves them", "services", len(services.Items))
	return errors.Join(failed...)
}

// restoreRequests gives pods their requests back.
func (c *cleaner) restoreRequests(ctx context.Context) error {
	var pods corev1.PodList
	err := c.client.List(ctx, &pods, client.InNamespace(c.namespace), client.HasLabels{v1alpha1.LabelService})
	if err != nil {
		return fmt.Errorf("list the pods of services: %w", err)
	}
	var failed []error
	for i := range pods.Items {
		p := &pods.Items[i]
		if !reservation.Noted(p) {
			continue
		}
		name := Name{p.Namespace, p.Name}
		if err := c.restore(ctx, p); client.IgnoreNotFound(err) != nil {
			failed = append(failed, fmt.Errorf("pod %s: restore its requests: %w", name, err))
			continue
		}
		c.log.Info("requests restored", "pod", name.String())
	}
	return errors.Join(failed...)
}

// restore takes the steps after which a pod has its requests again. A kubelet without room for them applies them later.
func (c *cleaner) restore(ctx context.Context, p *corev1.Pod) error {
	for {
		step, err := reservation.Next(p, reservation.Set{})
		if err != nil || step.Patch == nil {
			return err
		}
		patch := client.RawPatch(types.StrategicMergePatchType, step.Patch)
		if step.Resize {
			err = c.client.SubResource("resize").Patch(ctx, p, patch)
		} else {
			err = c.client.Patch(ctx, p, patch)
		}
		if err != nil {
			return err
		}
	}
}
