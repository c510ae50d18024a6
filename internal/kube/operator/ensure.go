// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
)

// ensure makes the cluster match a spec, or keeps serving its last valid version. The outcome has what a user must
// fix; an error is temporary and the call is repeated.
func (r *reconciler) ensure(ctx context.Context, key v1alpha1.Key, s *v1alpha1.WangellService) (outcome, error) {
	out, err := r.ensureSpec(ctx, key, s)
	if err == nil && !r.remember(key).put {
		err = r.putLastGood(ctx, key, s)
	}
	return out, err
}

func (r *reconciler) ensureSpec(ctx context.Context, key v1alpha1.Key, s *v1alpha1.WangellService) (outcome, error) {
	out := outcome{maxReplicas: s.Spec.MaxReplicas}
	out.invalid = v1alpha1.ValidateCluster(s)
	if !r.requests {
		out.invalid = append(out.invalid, v1alpha1.ValidateWithoutEnvoy(s)...)
	}
	if len(out.invalid) > 0 {
		return out, nil
	}
	out.strategy = r.claims.decide(key, s)
	svc, err := r.ensureService(ctx, s)
	if err != nil {
		return out, onlyRefused(&out, needsNoLoadBalancer(err))
	}
	of, err := r.labelsOf(ctx, s.Namespace)
	if err != nil {
		return out, err
	}
	out.addr, out.addrErr = r.addressFor(key, s, svc, of)
	if !ours(s) && !addressOf(svc).IsValid() {
		out.host = hostnameOf(svc)
	}
	out.inside = !announced(s) && ours(s)
	if err := r.ensurePods(ctx, key, s, &out); err != nil {
		return out, onlyRefused(&out, err)
	}
	if !out.addr.IsValid() || out.addrErr != nil {
		out.retry = addressRetry
		return out, nil
	}
	if _, err := ensureObject(ctx, r, sliceOf(s, out.addr), updateSlice); err != nil {
		return out, onlyRefused(&out, err)
	}
	if ours(s) {
		if err := r.writeIngress(ctx, svc, out.addr); err != nil {
			return out, err
		}
	}
	put := s.DeepCopy()
	put.Spec.Replicas, put.ManagedFields = nil, nil
	put.Spec.UpdateStrategy = out.strategy.Strategy
	put.Status = v1alpha1.WangellServiceStatus{}
	out.put = r.Put(controller.Service{Spec: put, Addr: out.addr, Announce: announced(s), Digests: s.Status.ImageDigests,
		History: s.Status.UseHistory})
	out.verdict = r.Verdict(key)
	if out.through, err = r.limitsOf(ctx, s); err != nil {
		return out, err
	}
	switch {
	case errors.Is(out.put, controller.ErrClosed):
		return out, out.put
	case out.put != nil:
		out.retry = addressRetry
	default:
		r.remember(key).put = true
		if svc.Spec.Type != s.Spec.ServiceType() {
			out.retry = addressRetry // the former load balancer is being removed
		}
	}
	return out, nil
}

// ensurePods ensures the source of pods: the Deployment or, with traffic, the revisions.
func (r *reconciler) ensurePods(ctx context.Context, key v1alpha1.Key, s *v1alpha1.WangellService,
	out *outcome) (err error) {
	if !s.Spec.SplitsTraffic() {
		out.deploy, err = r.ensureDeployment(ctx, key, s, out.strategy.Strategy)
		return err
	}
	again, err := r.ensureNoDeployment(ctx, s)
	if err != nil {
		return err
	}
	out.revisions, err = r.checkRevisions(ctx, s)
	if again || out.revisions != "" {
		out.retry = revisionRetry
	}
	return err
}

// ensureDeployment ensures the Deployment, with the images that its pods should run.
func (r *reconciler) ensureDeployment(ctx context.Context, key v1alpha1.Key, s *v1alpha1.WangellService,
	strategy v1alpha1.UpdateStrategy) (*appsv1.Deployment, error) {
	lazy, err := r.pullsLazily(ctx, key, s)
	if err != nil {
		return nil, err
	}
	plain := DeploymentOf(s, strategy, lazy)
	want := plain.DeepCopy()
	digests, asleep := r.digestsOf(key, s)
	fixImages(want, digests)
	return ensureObject(ctx, r, want, func(is, want *appsv1.Deployment) bool {
		keepImages(is, want, plain, asleep)
		return updateDeployment(is, want)
	})
}

// addressFor returns the service's address. Its namespace has the labels of.
func (r *reconciler) addressFor(key v1alpha1.Key, s *v1alpha1.WangellService, svc *corev1.Service,
	of labels.Set) (netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	had, err := netip.ParseAddr(s.Status.LoadBalancerIP)
	if err != nil {
		had = netip.Addr{}
	}
	if !ours(s) {
		return r.addressBeside(key, s.Spec.Class(), svc, had, of)
	}
	return r.book.claim(key, s.Spec.Address, had, of)
}

// addressBeside returns the address of a service with another load balancer: the one that the load balancer assigns.
// A load balancer with a host name sends to node ports, from which kube-proxy forwards to an address of the pools.
// r.mu is held.
func (r *reconciler) addressBeside(key v1alpha1.Key, class string, svc *corev1.Service,
	had netip.Addr, of labels.Set) (netip.Addr, error) {
	a, host := addressOf(svc), hostnameOf(svc)
	if a.IsValid() || host == "" {
		r.book.release(key)
		if !a.IsValid() {
			return a, addressError{"Pending", fmt.Sprintf(
				"load balancer %s has not given the Service an IPv4 address or a host name yet", class)}
		}
		return a, nil
	}
	a, err := r.book.claim(key, "", had, of)
	if err != nil {
		return a, addressError{"HostnameOnly", fmt.Sprintf(
			"load balancer %s gives the host name %s and no IPv4 address, so packets for its node port need one of "+
				"the pools: %v",
			class, host, err)}
	}
	return a, nil
}

func (r *reconciler) create(ctx context.Context, o client.Object) error {
	return r.client.Create(ctx, o, client.FieldOwner(fieldManager))
}

// object is a pointer to a struct that is an object of the API.
type object[T any] interface {
	*T
	client.Object
}

// ensureObject creates or updates an object. It returns the object as the API server stores it, or as cached if
// nothing had to change.
func ensureObject[T any, O object[T]](ctx context.Context, r *reconciler, want O, update func(is, want O) bool,
) (O, error) {
	is, created, err := getOrCreate[T](ctx, r, want)
	if err != nil || created {
		return is, err
	}
	if is = is.DeepCopyObject().(O); !update(is, want) {
		return is, nil
	}
	if err := r.client.Update(ctx, is, client.FieldOwner(fieldManager)); err != nil {
		return nil, fmt.Errorf("update %s: %w", nameOf(want), err)
	}
	return is, nil
}

// nameOf returns kind, namespace and name of an object, for errors.
func nameOf(o client.Object) string {
	return fmt.Sprintf("%T %s", o, client.ObjectKeyFromObject(o))[len("*v1."):]
}

// getOrCreate returns an object of a service as cached, or creates it. It refuses one that belongs to others.
func getOrCreate[T any, O object[T]](ctx context.Context, r *reconciler, want O) (o O, created bool, err error) {
	is := O(new(T))
	name := client.ObjectKeyFromObject(want)
	err = r.client.Get(ctx, name, is)
	if apierrors.IsNotFound(err) {
		made := want.DeepCopyObject().(O)
		if err = r.create(ctx, made); err == nil {
			return made, true, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, false, fmt.Errorf("create %s: %w", nameOf(want), err)
		}
		// The cache is late, or the object does not have the label.
		err = r.live.Get(ctx, name, is)
	}
	if err != nil {
		return nil, false, fmt.Errorf("look at %s: %w", nameOf(want), err)
	}
	if !metav1.IsControlledBy(is, &metav1.ObjectMeta{UID: want.GetOwnerReferences()[0].UID}) {
		return nil, false, fmt.Errorf("%s %w", nameOf(want), errForeign)
	}
	return is, false, nil
}
