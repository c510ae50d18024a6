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

// fieldManager is who writes, as managed fields have it.
const fieldManager = "wangell-controller"

// addressRetry is when a service that got no address asks again.
const addressRetry = 5 * time.Second

// keeper is what the reconciler needs of a controller.Controller.
type keeper interface {
	Put(controller.Service) error
	Delete(runtime.Key) error
	Synced(context.Context) error
	Scale(key runtime.Key, n int, why string) error
	StatusOf(runtime.Key) (controller.Status, bool)
}

// reconciler brings WangellServices about: the objects that belong to each, its address, what the controller knows of
// it, and its status.
type reconciler struct {
	client   client.Client // reads from a cache
	live     client.Reader // reads from the API server
	recorder events.EventRecorder
	now      func() time.Time

	begun chan struct{} // closed when keeper is there
	keeper

	mu      sync.Mutex // guards what follows
	book    *book
	pending map[runtime.Key]bool // not yet Put since the begin; nil when Synced was called
	synced  chan struct{}        // closed when pending has become empty
	known   map[runtime.Key]*memory
	trouble map[runtime.Key]kube.Trouble
}

// memory is what is remembered of a service between two looks at it.
type memory struct {
	replicas *replicasMemory
	// generation is that of the last spec.replicas that was written here.
	generation int64
	written    time.Time // when its status was written
	put        bool      // this controller was given it
}

func newReconciler(c client.Client, live client.Reader, recorder events.EventRecorder, pools Pools) *reconciler {
	return &reconciler{
		client: c, live: live, recorder: recorder, now: time.Now, begun: make(chan struct{}), synced: make(chan struct{}),
		book: newBook(pools), known: map[runtime.Key]*memory{}, trouble: map[runtime.Key]kube.Trouble{},
	}
}

// begin has the reconciler work with k. Before, it waits. all are the services that there are.
func (r *reconciler) begin(k keeper, all []v1alpha1.WangellService) {
	r.mu.Lock()
	r.pending = map[runtime.Key]bool{}
	oldestFirst(all)
	for i := range all {
		s := &all[i]
		key := runtime.KeyOf(s)
		r.pending[key] = true
		// What a service has is its own, before anybody asks for more.
		if a, err := netip.ParseAddr(s.Status.LoadBalancerIP); err == nil && ours(s) && usable(a) && (s.Spec.Address == "" || s.Spec.Address == a.String()) {
			if _, taken := r.book.held[a]; !taken {
				r.book.take(key, a)
			}
		}
	}
	r.keeper = k
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

// settled takes that a service was Put, or cannot be.
func (r *reconciler) settled(k runtime.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending != nil {
		delete(r.pending, k)
		r.checkSynced()
	}
}

// outcome is what came of bringing a spec about.
type outcome struct {
	addr    netip.Addr
	addrErr error // why there is no address, or not the one that is asked for
	invalid v1alpha1.ValidationErrors
	refused error // the API server refused an object, or one that is somebody else's is in the way
	deploy  *appsv1.Deployment
	put     error // the controller refused the service
	retry   time.Duration
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
	out, err := r.bring(ctx, key, spec)
	if err != nil {
		return reconcile.Result{}, err
	}
	r.settled(key)
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

// forget removes a service that is gone. Its objects go with their owner.
func (r *reconciler) forget(key runtime.Key) error {
	if err := r.Delete(key); err != nil {
		return err
	}
	r.mu.Lock()
	r.book.release(key)
	delete(r.known, key)
	delete(r.trouble, key)
	r.mu.Unlock()
	r.settled(key)
	return nil
}

// bring brings a spec about, or sees to it that what was good last is served. What a user has to mend is in the outcome;
// an error is worth another try.
func (r *reconciler) bring(ctx context.Context, key runtime.Key, s *v1alpha1.WangellService) (outcome, error) {
	out, err := r.bringSpec(ctx, key, s)
	if err == nil && !r.remember(key).put {
		err = r.hold(ctx, key, s)
	}
	return out, err
}

func (r *reconciler) bringSpec(ctx context.Context, key runtime.Key, s *v1alpha1.WangellService) (outcome, error) {
	out := outcome{maxReplicas: s.Spec.MaxReplicas}
	if out.invalid = v1alpha1.ValidateCluster(s); len(out.invalid) > 0 {
		return out, nil
	}
	svc, err := r.bringService(ctx, s)
	if err != nil {
		return out, onlyRefused(&out, err)
	}
	out.addr, out.addrErr = r.addressFor(key, s, svc)
	if out.deploy, err = bringObject(ctx, r, DeploymentOf(s), updateDeployment); err != nil {
		return out, onlyRefused(&out, err)
	}
	if !out.addr.IsValid() || out.addrErr != nil {
		out.retry = addressRetry
		return out, nil
	}
	if _, err := bringObject(ctx, r, sliceOf(s, out.addr), updateSlice); err != nil {
		return out, onlyRefused(&out, err)
	}
	if ours(s) {
		if err := r.tellIngress(ctx, svc, out.addr); err != nil {
			return out, err
		}
	}
	put := s.DeepCopy()
	put.Spec.Replicas, put.ManagedFields = nil, nil
	put.Status = v1alpha1.WangellServiceStatus{}
	if out.put = r.Put(controller.Service{Spec: put, Addr: out.addr, Announce: ours(s)}); errors.Is(out.put, controller.ErrClosed) {
		return out, out.put
	} else if out.put != nil {
		out.retry = addressRetry
	} else {
		r.remember(key).put = true
	}
	return out, nil
}

// errForeign: an object with the name of ours belongs to somebody else.
var errForeign = errors.New("is there already and does not belong to this WangellService: rename one of the two, or remove it")

// onlyRefused keeps in the outcome what a user has to mend, and returns any other error.
func onlyRefused(out *outcome, err error) error {
	if errors.Is(err, errForeign) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
		out.refused, out.retry = err, time.Minute
		return nil
	}
	return err
}

// addressFor is the service's address.
func (r *reconciler) addressFor(key runtime.Key, s *v1alpha1.WangellService, svc *corev1.Service) (netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ours(s) {
		r.book.release(key)
		a := addressOf(svc)
		if host := hostnameOf(svc); !a.IsValid() && host != "" {
			return a, addressError{"HostnameOnly", fmt.Sprintf("load balancer %s gives the host name %s and no IPv4 address, which Wangell needs to know its packets: have it give an address, or leave spec.loadBalancerClass out", s.Spec.LoadBalancerClass, host)}
		}
		if !a.IsValid() {
			return a, addressError{"Pending", fmt.Sprintf("load balancer %s has not given the Service an IPv4 address yet", s.Spec.LoadBalancerClass)}
		}
		return a, nil
	}
	had, err := netip.ParseAddr(s.Status.LoadBalancerIP)
	if err != nil {
		had = netip.Addr{}
	}
	return r.book.claim(key, s.Spec.Address, had)
}

// bringService brings the Service about. One of another class has to be made anew.
func (r *reconciler) bringService(ctx context.Context, s *v1alpha1.WangellService) (*corev1.Service, error) {
	want := serviceOf(s)
	svc, err := bringObject(ctx, r, want, func(is, want *corev1.Service) bool {
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

// bringObject makes an object, or brings it to what it shall be. What is returned is as the API server has it, or as the
// cache had it if nothing was to change.
func bringObject[T any, O interface {
	*T
	client.Object
}](ctx context.Context, r *reconciler, want O, update func(is, want O) bool) (O, error) {
	kind := fmt.Sprintf("%T", want)[len("*v1."):]
	is := O(new(T))
	name := client.ObjectKeyFromObject(want)
	err := r.client.Get(ctx, name, is)
	if apierrors.IsNotFound(err) {
		made := want.DeepCopyObject().(O)
		if err = r.create(ctx, made); err == nil {
			return made, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("create %s %s: %w", kind, name, err)
		}
		// The cache is late, or the object has not our label.
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

// tellIngress tells in the Service's status which address it has.
func (r *reconciler) tellIngress(ctx context.Context, svc *corev1.Service, addr netip.Addr) error {
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
