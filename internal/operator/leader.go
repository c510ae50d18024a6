// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/kube"
)

// leader is what runs only in the process that leads.
type leader struct {
	cfg        Config
	log        *slog.Logger
	client     kubernetes.Interface
	mgr        manager.Manager
	r          *reconciler
	changed    *keySource
	controller atomic.Pointer[controller.Controller]
}

// statusDelay is how long a change of a service's state may go on changing before it is written: a wake has better use
// for the machine than telling the API server of each of its steps.
const statusDelay = 300 * time.Millisecond

// keySource brings keys to the reconciler's queue, each once however often it was added before it was taken.
type keySource struct {
	ch   chan event.TypedGenericEvent[runtime.Key]
	mu   sync.Mutex
	keys map[runtime.Key]bool
	more chan struct{} // has an element while keys are there
}

func newKeySource() *keySource {
	return &keySource{ch: make(chan event.TypedGenericEvent[runtime.Key]), keys: map[runtime.Key]bool{}, more: make(chan struct{}, 1)}
}

// add never waits.
func (s *keySource) add(keys ...runtime.Key) {
	s.mu.Lock()
	for _, k := range keys {
		s.keys[k] = true
	}
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// run brings what is added, until ctx ends.
func (s *keySource) run(ctx context.Context) {
	for {
		select {
		case <-s.more:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		keys := slices.Collect(maps.Keys(s.keys))
		clear(s.keys)
		s.mu.Unlock()
		for _, k := range keys {
			select {
			case s.ch <- event.TypedGenericEvent[runtime.Key]{Object: k}:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (s *keySource) source() source.Source {
	return source.Channel(s.ch, handler.TypedFuncs[runtime.Key, reconcile.Request]{
		GenericFunc: func(_ context.Context, e event.TypedGenericEvent[runtime.Key], q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			namespace, name, _ := strings.Cut(string(e.Object), "/")
			q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}}, statusDelay)
		},
	})
}

// register has the manager run the reconciler and the leader.
func (l *leader) register() error {
	b := ctrl.NewControllerManagedBy(l.mgr).Named("wangellservice").
		For(&v1alpha1.WangellService{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&appsv1.Deployment{}).Owns(&corev1.Service{}).Owns(&discoveryv1.EndpointSlice{}).
		WatchesRawSource(l.changed.source())
	if err := b.Complete(l.r); err != nil {
		return err
	}
	if l.cfg.PoolsFrom != (Name{}) {
		pools := ctrl.NewControllerManagedBy(l.mgr).Named("pools").For(&corev1.ConfigMap{})
		if err := pools.Complete(reconcile.Func(l.readPools)); err != nil {
			return err
		}
	}
	return l.mgr.Add(manager.RunnableFunc(l.lead)) // a RunnableFunc runs in the leader only
}

// readPools takes the pools from the ConfigMap. What cannot be read changes nothing.
func (l *leader) readPools(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if from := l.cfg.PoolsFrom; req.Namespace != from.Namespace || req.Name != from.Name {
		return reconcile.Result{}, nil
	}
	var m corev1.ConfigMap
	if err := l.r.client.Get(ctx, req.NamespacedName, &m); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	pools, err := ParsePoolsYAML(m.Data["addresses"])
	if err != nil {
		l.log.Error(fmt.Sprintf("ConfigMap %s, key addresses: %v; the pools stay as they are", l.cfg.PoolsFrom, err))
		return reconcile.Result{}, nil
	}
	l.r.setPools(append(append(Pools(nil), l.cfg.Pools...), pools...))
	l.log.Info("pools of service addresses", "pools", pools.String())
	return reconcile.Result{}, nil
}

// setPools replaces the pools. Services keep the addresses that they have; those that wait for one ask again soon.
func (r *reconciler) setPools(p Pools) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.book.pools = p
}

// lead runs while this process leads: the controller with its runtime and its socket for daemons.
func (l *leader) lead(ctx context.Context) error {
	conn, err := listen(l.cfg.WireAddress)
	if err != nil {
		return err
	}
	rt, err := kube.Open(ctx, kube.Config{
		Client: l.client, Namespace: l.cfg.Namespace, ThroughDeployment: l.cfg.StartThroughDeployment, Log: l.log, Trouble: l.troubled,
	})
	if err != nil {
		_ = conn.Close()
		return err
	}
	c, err := controller.New(controller.Config{Runtime: rt, Conn: conn, Key: l.cfg.Key, Log: l.log})
	if err != nil {
		_ = conn.Close()
		return errors.Join(err, rt.Close())
	}
	// The runtime ends first: starts that the controller then gives up change nothing in the cluster, where the next
	// leader finds their pods.
	defer c.Detach()
	defer rt.Close()
	collector := c.Collector()
	if err := metrics.Registry.Register(collector); err != nil {
		return err
	}
	defer metrics.Registry.Unregister(collector)
	var all v1alpha1.WangellServiceList
	if err := l.r.client.List(ctx, &all); err != nil {
		return fmt.Errorf("list WangellServices: %w", err)
	}
	l.controller.Store(c)
	var workers sync.WaitGroup
	defer workers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	happened := c.Subscribe(ctx)
	workers.Go(func() { l.changed.run(ctx) })
	workers.Go(func() { l.r.narrate(ctx, happened) })
	workers.Go(func() { l.callSynced(ctx, c) })
	l.r.begin(c, all.Items)
	l.log.Info("leads", "identity", l.cfg.Identity, "services", len(all.Items))
	for {
		keys, err := c.Changed(ctx)
		if err != nil {
			return nil // the end
		}
		l.changed.add(keys...)
	}
}

// callSynced tells the controller that it knows all services, once every one was looked at.
func (l *leader) callSynced(ctx context.Context, c *controller.Controller) {
	select {
	case <-l.r.synced:
	case <-ctx.Done():
		return
	}
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := c.Synced(ctx)
		if err == nil || errors.Is(err, controller.ErrClosed) {
			return
		}
		l.log.Error(err.Error())
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// troubled takes what holds up a service's pods. It must not wait: the runtime calls it.
func (l *leader) troubled(k runtime.Key, t kube.Trouble) {
	l.r.mu.Lock()
	if t == (kube.Trouble{}) {
		delete(l.r.trouble, k)
	} else {
		l.r.trouble[k] = t
	}
	l.r.mu.Unlock()
	l.changed.add(k)
}
