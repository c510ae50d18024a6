// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/decide/netpol"
	"wangell.loutres.me/internal/runtime/kube"
	"wangell.loutres.me/internal/status"
)

// fieldManager is the name of the operator in managed fields.
const fieldManager = "wangell-controller"

// addressRetry is the pause before a service without an address claims one again.
const addressRetry = 5 * time.Second

// controllerAPI is the part of controller.Controller that the reconciler uses.
type controllerAPI interface {
	Put(controller.Service) error
	Delete(v1alpha1.Key) error
	Synced(context.Context) error
	Scale(key v1alpha1.Key, n int, why string) error
	StatusOf(v1alpha1.Key) (status.Status, bool)
	Recall(v1alpha1.Key, v1alpha1.WangellServiceStatus)
	// Verdict returns what NetworkPolicies say of a service.
	Verdict(v1alpha1.Key) netpol.Verdict
}

// enforced is a controller whose services are restricted by NetworkPolicies.
type enforced struct {
	*controller.Controller
	policies *enforcer
}

var _ controllerAPI = (*enforced)(nil)

// Put implements controllerAPI.
func (c *enforced) Put(s controller.Service) error { return c.policies.put(v1alpha1.KeyOf(s.Spec), s) }

// Delete implements controllerAPI.
func (c *enforced) Delete(key v1alpha1.Key) error {
	c.policies.forget(key)
	return c.Controller.Delete(key)
}

// Verdict implements controllerAPI.
func (c *enforced) Verdict(key v1alpha1.Key) netpol.Verdict { return c.policies.verdict(key) }

// reconciler maintains the objects, the address and the status of each WangellService, and passes it to the controller.
type reconciler struct {
	client   client.Client // reads from a cache
	live     client.Reader // reads from the API server
	recorder events.EventRecorder
	now      func() time.Time

	nodePorts bool // Config.NodePorts
	lazy      bool // Config.Lazy
	requests  bool // Config.Requests

	begun  chan struct{} // closed when claims and controllerAPI are set
	claims *claims
	controllerAPI

	mu       sync.Mutex // guards what follows
	book     *book
	pending  map[v1alpha1.Key]bool // services that were not reconciled since begin; nil once there are none
	synced   chan struct{}         // closed when pending has become empty
	known    map[v1alpha1.Key]*memory
	trouble  map[v1alpha1.Key]kube.Trouble
	waking   map[v1alpha1.Key]bool // services that were being woken when they were observed last
	traffics traffics
	fronts   fronts                     // the Envoys of the nodes
	unrouted map[v1alpha1.Key]time.Time // when the traffic of another service last ceased to name a revision
	again    func(...v1alpha1.Key)      // reconciles services again; nil in tests
}

// memory is the reconciler's state of a service between two reconciliations.
type memory struct {
	replicas *replicasMemory
	// generation is the service's generation after the last write of spec.replicas.
	generation int64
	uid        types.UID // of the service that has this generation
	written    time.Time // when its status was written last
	put        bool      // it was passed to the controller
	told       bool      // the controller was told that it is being deleted
	seen       int64     // the generation that was reconciled last
}

func newReconciler(c client.Client, live client.Reader, recorder events.EventRecorder, pools Pools) *reconciler {
	return &reconciler{
		client: c, live: live, recorder: recorder, now: time.Now,
		begun: make(chan struct{}), synced: make(chan struct{}),
		book: newBook(pools), known: map[v1alpha1.Key]*memory{}, trouble: map[v1alpha1.Key]kube.Trouble{},
		waking:   map[v1alpha1.Key]bool{},
		traffics: traffics{}, unrouted: map[v1alpha1.Key]time.Time{},
	}
}

// begin starts the reconciler, which waits for it. all are the services that exist.
func (r *reconciler) begin(c controllerAPI, used *claims, all []v1alpha1.WangellService) {
	r.mu.Lock()
	r.pending = map[v1alpha1.Key]bool{}
	oldestFirst(all)
	for i := range all {
		s := &all[i]
		key := v1alpha1.KeyOf(s)
		r.pending[key] = true
		if s.DeletionTimestamp == nil {
			r.traffics.set(key, s.Namespace, s.Spec.Traffic)
		}
		// Services keep their addresses before any claims a new one. Addresses of other load balancers, which may be
		// in the pools, are released when their Service is seen.
		a, err := netip.ParseAddr(s.Status.LoadBalancerIP)
		keeps := s.Spec.Address == "" || s.Spec.Address == a.String()
		if err == nil && usable(a) && (keeps || !ours(s)) {
			if _, taken := r.book.held[a]; !taken {
				r.book.take(key, a)
			}
		}
	}
	r.controllerAPI, r.claims = c, used
	r.checkSynced()
	r.mu.Unlock()
	close(r.begun)
}

func oldestFirst(all []v1alpha1.WangellService) {
	slices.SortFunc(all, func(a, b v1alpha1.WangellService) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
	})
}

// checkSynced closes synced when nothing is pending. The lock is held.
func (r *reconciler) checkSynced() {
	if r.pending != nil && len(r.pending) == 0 {
		r.pending = nil
		close(r.synced)
	}
}

// reconciled records that a service was passed to the controller, or cannot be.
func (r *reconciler) reconciled(k v1alpha1.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending != nil {
		delete(r.pending, k)
		r.checkSynced()
	}
}

// setPools replaces the pools and their rules. Services keep their addresses; those that wait for one try again soon.
func (r *reconciler) setPools(p Pools, rules AddressRules) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.book.pools, r.book.rules = p, rules
}

// labelsOf returns the labels of a namespace, if the rules of addresses ask for labels.
func (r *reconciler) labelsOf(ctx context.Context, namespace string) (labels.Set, error) {
	r.mu.Lock()
	asks := len(r.book.rules.Reserved) > 0
	r.mu.Unlock()
	if !asks {
		return nil, nil
	}
	var ns corev1.Namespace
	if err := r.client.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err != nil {
		return nil, fmt.Errorf("the labels of namespace %s, which decide on its addresses: %w", namespace, err)
	}
	return ns.Labels, nil
}

// remember returns the memory of a service, which may be new. Only the service's reconciliation uses it, one at a time.
func (r *reconciler) remember(key v1alpha1.Key) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.known[key]
	if m == nil {
		m = &memory{}
		r.known[key] = m
	}
	return m
}

// forget removes a service that is gone. Its objects are deleted with their owner.
func (r *reconciler) forget(key v1alpha1.Key) error {
	if err := r.Delete(key); err != nil {
		return err
	}
	r.claims.forget(key)
	r.mu.Lock()
	r.book.release(key)
	delete(r.known, key)
	delete(r.trouble, key)
	delete(r.waking, key)
	delete(r.unrouted, key)
	r.mu.Unlock()
	r.reconciled(key)
	return nil
}

// soonest returns the shortest of some pauses; zero stands for none.
func soonest(pauses ...time.Duration) time.Duration {
	var first time.Duration
	for _, p := range pauses {
		if p > 0 && (first == 0 || p < first) {
			first = p
		}
	}
	return first
}
