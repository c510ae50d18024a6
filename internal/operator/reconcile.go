// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/kube"
)

// fieldManager is the name of the operator in managed fields.
const fieldManager = "wangell-controller"

// addressRetry is the pause before a service without an address claims one again.
const addressRetry = 5 * time.Second

// controllerAPI is what the reconciler uses of a controller.Controller.
type controllerAPI interface {
	Put(controller.Service) error
	Delete(runtime.Key) error
	Synced(context.Context) error
	Scale(key runtime.Key, n int, why string) error
	StatusOf(runtime.Key) (controller.Status, bool)
}

// reconciler maintains the objects, the address and the status of each WangellService, and passes it to the controller.
type reconciler struct {
	client   client.Client // reads from a cache
	live     client.Reader // reads from the API server
	recorder events.EventRecorder
	now      func() time.Time

	begun chan struct{} // closed when controllerAPI is set
	controllerAPI

	mu      sync.Mutex // guards what follows
	book    *book
	pending map[runtime.Key]bool // services that were not reconciled since begin; nil once there are none
	synced  chan struct{}        // closed when pending has become empty
	known   map[runtime.Key]*memory
	trouble map[runtime.Key]kube.Trouble
}

// memory is what is remembered of a service between two reconciliations.
type memory struct {
	replicas *replicasMemory
	// generation is that of the service after the last write of spec.replicas.
	generation int64
	written    time.Time // when its status was written last
	put        bool      // it was passed to the controller
}

func newReconciler(c client.Client, live client.Reader, recorder events.EventRecorder, pools Pools) *reconciler {
	return &reconciler{
		client: c, live: live, recorder: recorder, now: time.Now, begun: make(chan struct{}), synced: make(chan struct{}),
		book: newBook(pools), known: map[runtime.Key]*memory{}, trouble: map[runtime.Key]kube.Trouble{},
	}
}

// begin starts the reconciler, which waits for it. all are the services that exist.
func (r *reconciler) begin(c controllerAPI, all []v1alpha1.WangellService) {
	r.mu.Lock()
	r.pending = map[runtime.Key]bool{}
	oldestFirst(all)
	for i := range all {
		s := &all[i]
		key := runtime.KeyOf(s)
		r.pending[key] = true
		// Services keep their addresses before any claims a new one.
		a, err := netip.ParseAddr(s.Status.LoadBalancerIP)
		if err == nil && ours(s) && usable(a) && (s.Spec.Address == "" || s.Spec.Address == a.String()) {
			if _, taken := r.book.held[a]; !taken {
				r.book.take(key, a)
			}
		}
	}
	r.controllerAPI = c
	r.checkSynced()
	r.mu.Unlock()
	close(r.begun)
}

// checkSynced closes synced when nothing is pending. The lock is held.
func (r *reconciler) checkSynced() {
	if r.pending != nil && len(r.pending) == 0 {
		r.pending = nil
		close(r.synced)
	}
}

// reconciled records that a service was passed to the controller, or cannot be.
func (r *reconciler) reconciled(k runtime.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending != nil {
		delete(r.pending, k)
		r.checkSynced()
	}
}

// outcome is the result of ensuring what a spec asks for.
type outcome struct {
	addr    netip.Addr
	addrErr error // why there is no address, or not the one that the spec asks for
	invalid v1alpha1.ValidationErrors
	refused error // the API server refused an object, or one of another owner is in the way
	deploy  *appsv1.Deployment
	put     error         // the controller refused the service
	retry   time.Duration // zero: no retry
	// maxReplicas is that of the spec, or its default.
	maxReplicas int32
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	select {
	case <-r.begun:
	case <-ctx.Done():
		return reconcile.Result{}, ctx.Err()
	}
	key := runtime.Key(req.Namespace + "/" + req.Name)
	var s v1alpha1.WangellService
	err := r.client.Get(ctx, req.NamespacedName, &s)
	switch {
	case apierrors.IsNotFound(err) || err == nil && s.DeletionTimestamp != nil:
		return reconcile.Result{}, r.forget(key)
	case err != nil:
		return reconcile.Result{}, err
	}
	spec := s.DeepCopy()
	v1alpha1.Default(spec)
	out, err := r.ensure(ctx, key, spec)
	if err != nil {
		return reconcile.Result{}, err
	}
	r.reconciled(key)
	if err := r.syncReplicas(ctx, key, &s, out); err != nil {
		return reconcile.Result{}, err
	}
	again, err := r.writeStatus(ctx, key, &s, out)
	if err != nil {
		return reconcile.Result{}, err
	}
	if out.retry > 0 && (again == 0 || out.retry < again) {
		again = out.retry
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// forget removes a service that is gone. Its objects are deleted with their owner.
func (r *reconciler) forget(key runtime.Key) error {
	if err := r.Delete(key); err != nil {
		return err
	}
	r.mu.Lock()
	r.book.release(key)
	delete(r.known, key)
	delete(r.trouble, key)
	r.mu.Unlock()
	r.reconciled(key)
	return nil
}

// ensure ensures what a spec asks for, or that its last valid version is served. What a user has to fix is in the
// outcome; an error is worth another try.
func (r *reconciler) ensure(ctx context.Context, key runtime.Key, s *v1alpha1.WangellService) (outcome, error) {
	out, err := r.ensureSpec(ctx, key, s)
	if err == nil && !r.remember(key).put {
		err = r.putLastGood(ctx, key, s)
	}
	return out, err
}

func (r *reconciler) ensureSpec(ctx context.Context, key runtime.Key, s *v1alpha1.WangellService) (outcome, error) {
	out := outcome{maxReplicas: s.Spec.MaxReplicas}
	if out.invalid = v1alpha1.ValidateCluster(s); len(out.invalid) > 0 {
		return out, nil
	}
	svc, err := r.ensureService(ctx, s)
	if err != nil {
		return out, onlyRefused(&out, err)
	}
	out.addr, out.addrErr = r.addressFor(key, s, svc)
	if out.deploy, err = ensureObject(ctx, r, DeploymentOf(s), updateDeployment); err != nil {
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
	put.Status = v1alpha1.WangellServiceStatus{}
	out.put = r.Put(controller.Service{Spec: put, Addr: out.addr, Announce: ours(s)})
	switch {
	case errors.Is(out.put, controller.ErrClosed):
		return out, out.put
	case out.put != nil:
		out.retry = addressRetry
	default:
		r.remember(key).put = true
	}
	return out, nil
}

// errForeign means that an object with the wanted name has another owner.
var errForeign = errors.New("exists already and does not belong to this WangellService: " +
	"rename one of the two, or remove it")

// onlyRefused moves an error that a user has to fix to the outcome, and returns any other.
func onlyRefused(out *outcome, err error) error {
	if errors.Is(err, errForeign) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) ||
		apierrors.IsBadRequest(err) {
		out.refused, out.retry = err, time.Minute
		return nil
	}
	return err
}

// addressFor returns the service's address.
func (r *reconciler) addressFor(key runtime.Key, s *v1alpha1.WangellService, svc *corev1.Service) (netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ours(s) {
		r.book.release(key)
		a := addressOf(svc)
		if host := hostnameOf(svc); !a.IsValid() && host != "" {
			return a, addressError{"HostnameOnly", fmt.Sprintf("load balancer %s gives the host name %s and no IPv4 address, "+
				"by which Wangell recognizes packets: have it give an address, or leave spec.loadBalancerClass out",
				s.Spec.LoadBalancerClass, host)}
		}
		if !a.IsValid() {
			return a, addressError{"Pending", fmt.Sprintf(
				"load balancer %s has not given the Service an IPv4 address yet", s.Spec.LoadBalancerClass)}
		}
		return a, nil
	}
	had, err := netip.ParseAddr(s.Status.LoadBalancerIP)
	if err != nil {
		had = netip.Addr{}
	}
	return r.book.claim(key, s.Spec.Address, had)
}

// ensureService ensures the Service. One of another class is created again: the class cannot be changed.
func (r *reconciler) ensureService(ctx context.Context, s *v1alpha1.WangellService) (*corev1.Service, error) {
	want := serviceOf(s)
	svc, err := ensureObject(ctx, r, want, func(is, want *corev1.Service) bool {
		return !otherClass(is, want) && updateService(is, want)
	})
	if err != nil || !otherClass(svc, want) {
		return svc, err
	}
	if err := r.client.Delete(ctx, svc, client.Preconditions{UID: &svc.UID}); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("delete Service %s/%s of another class: %w", svc.Namespace, svc.Name, err)
	}
	return svc, r.create(ctx, want)
}

func (r *reconciler) create(ctx context.Context, o client.Object) error {
	return r.client.Create(ctx, o, client.FieldOwner(fieldManager))
}

// ensureObject creates an object, or updates it. It returns the object as the API server has it, or as the cache had it
// if nothing was to change.
func ensureObject[T any, O interface {
	*T
	client.Object
}](ctx context.Context, r *reconciler, want O, update func(is, want O) bool) (O, error) {
	kind := fmt.Sprintf("%T", want)[len("*v1."):]
	is := O(new(T))
	name := client.ObjectKeyFromObject(want)
	err := r.client.Get(ctx, name, is)
	if apierrors.IsNotFound(err) {
		created := want.DeepCopyObject().(O)
		if err = r.create(ctx, created); err == nil {
			return created, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("create %s %s: %w", kind, name, err)
		}
		// The cache is late, or the object does not have the label.
		err = r.live.Get(ctx, name, is)
	}
	if err != nil {
		return nil, fmt.Errorf("look at %s %s: %w", kind, name, err)
	}
	if !metav1.IsControlledBy(is, &metav1.ObjectMeta{UID: want.GetOwnerReferences()[0].UID}) {
		return nil, fmt.Errorf("%s %s %w", kind, name, errForeign)
	}
	if is = is.DeepCopyObject().(O); !update(is, want) {
		return is, nil
	}
	if err := r.client.Update(ctx, is, client.FieldOwner(fieldManager)); err != nil {
		return nil, fmt.Errorf("update %s %s: %w", kind, name, err)
	}
	return is, nil
}

// writeIngress writes the address into the Service's status.
func (r *reconciler) writeIngress(ctx context.Context, svc *corev1.Service, addr netip.Addr) error {
	want := ingressOf(addr)
	if addressOf(svc) == addr && len(svc.Status.LoadBalancer.Ingress) == 1 {
		if mode := svc.Status.LoadBalancer.Ingress[0].IPMode; mode != nil && *mode == *want.Ingress[0].IPMode {
			return nil
		}
	}
	next := svc.DeepCopy()
	next.Status.LoadBalancer = want
	if err := r.client.Status().Patch(ctx, next, client.MergeFrom(svc), client.FieldOwner(fieldManager)); err != nil {
		return fmt.Errorf("status of Service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	return nil
}
