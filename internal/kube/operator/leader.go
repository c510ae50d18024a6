// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/controller/traces"
	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/runtime/kube"
	"wangell.loutres.me/internal/wire"
)

// leader is what runs in the leading process only.
type leader struct {
	cfg        Config
	log        *slog.Logger
	client     kubernetes.Interface
	mgr        manager.Manager
	enrolment  *enrolment.Server // nil without Config.DaemonAccount
	traces     *traces.Exporter  // nil unless the environment asks for it
	r          *reconciler
	changed    changedServices
	controller atomic.Pointer[controller.Controller]
	leading    sync.WaitGroup // while lead runs
	// retired is the former leader that handOver closes; nil if there is none.
	retired atomic.Pointer[retired]
}

// retired is a former leader that still forwards pod changes to daemons.
type retired struct {
	controller *controller.Controller
	runtime    *kube.Runtime
}

// close ends the runtime first, so that starts that the controller then abandons change nothing in the cluster: the
// next leader finds their pods.
func (r *retired) close(log *slog.Logger) {
	if err := r.runtime.Close(); err != nil {
		log.Warn("the watches cannot be ended", "error", err)
	}
	r.controller.Detach()
}

// isLastTimeout bounds the request of isLast.
const isLastTimeout = 2 * time.Second

// handsOver is logged when this process no longer leads.
const handsOver = "no longer the leader: daemons may move to the next one"

// handOver waits until the daemons have moved to the next leader, for at most Config.HandOver. Until then, this
// process reports to them which pods leave, listen or have ended. It is called once the Lease was released or lost.
func (l *leader) handOver() {
	l.leading.Wait() // the manager does not wait for it after it has lost the Lease
	r := l.retired.Load()
	if r == nil {
		return
	}
	defer r.close(l.log)
	if l.isLast() {
		l.log.Info("no longer the leader, and no controller is to follow: traffic goes on, but nothing wakes",
			"deployment", l.cfg.Deployment.String())
		return
	}
	l.log.Info(handsOver, "within", l.cfg.HandOver)
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), l.cfg.HandOver)
	defer cancel()
	if err := r.controller.AwaitSuccessor(ctx); err != nil {
		l.log.Warn("no other controller has taken over all daemons; traffic goes on, but nothing wakes until one does",
			"waited", l.cfg.HandOver)
		return
	}
	l.log.Info("handed over", "took", time.Since(begin))
}

// isLast reports whether the Deployment of the controllers has no replicas, or is gone, as in an uninstallation. It is
// false if the API server does not answer.
func (l *leader) isLast() bool {
	name := l.cfg.Deployment
	if name == (Name{}) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), isLastTimeout)
	defer cancel()
	d, err := l.client.AppsV1().Deployments(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		return apierrors.IsNotFound(err)
	}
	return d.DeletionTimestamp != nil || d.Spec.Replicas != nil && *d.Spec.Replicas == 0
}

// lead runs the controller, with its runtime and its socket for daemons, while this process leads. After that,
// handOver takes over the controller.
func (l *leader) lead(ctx context.Context) error {
	l.leading.Add(1)
	defer l.leading.Done()
	admits := &nodePolicy{client: l.client, at: l.cfg.NodePolicy, log: l.log}
	if l.cfg.NodePolicy != (Name{}) {
		if err := admits.prepare(ctx); err != nil {
			l.log.Warn("daemons may not reach this controller", "error", err)
		}
	}
	conn, err := listen(l.cfg.WireAddress)
	if err != nil {
		return err
	}
	rt, err := l.openRuntime(ctx)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	c, err := controller.New(controller.Config{
		Runtime: rt, Conn: conn, Key: l.cfg.Key, Log: l.log,
		MaxServices: l.cfg.MaxServices, AwaitServices: true, Lazy: l.cfg.Lazy, Wake: l.traces.Put, Caller: l.traces.Join,
	})
	if err != nil {
		return errors.Join(err, conn.Close(), rt.Close())
	}
	defer func() {
		c.Retire()
		rt.Retire()
		l.retired.Store(&retired{c, rt})
	}()
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
	e, err := newEnforcer(ctx, l.client, l.cfg.Namespace, l.log)
	if err != nil {
		return err
	}
	e.controller, e.judged = c, func(keys ...v1alpha1.Key) { l.changed.add(l.r.withRouted(keys)...) }
	workers.Go(e.run)
	used, err := newClaims(ctx, l.client, l.cfg.Namespace, l.log, l.changed.add)
	if err != nil {
		return err
	}
	workers.Go(used.run)
	if l.cfg.NodePolicy != (Name{}) {
		admits.sessions = c.DaemonAddrs
		workers.Go(func() { admits.run(ctx) })
	}
	if l.r.fronts.watched {
		w := &frontWatch{client: l.client, at: l.cfg.Fronts, log: l.log, nodes: c.DaemonAddrs, tell: l.tellFronts}
		workers.Go(func() { w.run(ctx) })
	}
	if err := l.enrol(ctx, &workers); err != nil {
		return err
	}
	happened := c.Subscribe(ctx)
	workers.Go(func() { l.r.narrate(ctx, happened) })
	workers.Go(func() { l.callSynced(ctx, c) })
	if err := l.keepReleased(ctx, &workers); err != nil {
		return err
	}
	l.r.begin(&enforced{c, e}, used, all.Items)
	l.log.Info("leads", "identity", l.cfg.Identity, "services", len(all.Items))
	for {
		keys, err := c.Changed(ctx)
		if err != nil {
			return nil // ctx ended
		}
		l.changed.add(keys...)
	}
}

// keepReleased has the addresses in quarantine outlast leaders.
func (l *leader) keepReleased(ctx context.Context, workers *sync.WaitGroup) error {
	if l.cfg.ReleasedIn == (Name{}) {
		return nil
	}
	s := &released{client: l.client, at: l.cfg.ReleasedIn, log: l.log, r: l.r}
	left, err := s.load(ctx)
	if err != nil {
		return err
	}
	if left == nil {
		return nil
	}
	l.r.mu.Lock()
	l.r.book.left = left
	l.r.mu.Unlock()
	workers.Go(func() { s.run(ctx) })
	return nil
}

// enrol serves the keys of nodes to their daemons until ctx ends.
func (l *leader) enrol(ctx context.Context, workers *sync.WaitGroup) error {
	if l.enrolment == nil {
		return nil
	}
	at, err := net.Listen("tcp", l.cfg.WireAddress)
	if err != nil {
		return fmt.Errorf("enrolment of daemons: %w", err)
	}
	workers.Go(func() {
		if err := l.enrolment.Serve(ctx, at); err != nil {
			l.log.Error(err.Error())
		}
	})
	return nil
}

// openRuntime opens the runtime, which reads Deployments from the reconciler's cache.
func (l *leader) openRuntime(ctx context.Context) (*kube.Runtime, error) {
	deployments, err := l.mgr.GetCache().GetInformer(ctx, &appsv1.Deployment{})
	if err != nil {
		return nil, fmt.Errorf("cache of Deployments: %w", err)
	}
	return kube.Open(ctx, kube.Config{
		Client: l.client, Deployments: deployments, Namespace: l.cfg.Namespace,
		ThroughDeployment: l.cfg.StartThroughDeployment, LogsInMessages: l.cfg.LogsInMessages,
		Log: l.log, Trouble: l.reportTrouble, Reserved: func(k v1alpha1.Key) { l.changed.add(k) },
	})
}

// callSynced calls Synced of the controller once every service was reconciled.
func (l *leader) callSynced(ctx context.Context, c *controller.Controller) {
	select {
	case <-l.r.synced:
	case <-ctx.Done():
		return
	}
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Cap: 5 * time.Second, Steps: 10}
	// The only error is that of ctx.
	_ = backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := c.Synced(ctx)
		if err != nil && !errors.Is(err, controller.ErrClosed) {
			l.log.Error(err.Error())
			return false, nil
		}
		return true, nil
	})
}

// reportTrouble records why a service's pods do not start. The runtime calls it, so it must not block.
func (l *leader) reportTrouble(k v1alpha1.Key, t kube.Trouble) {
	l.r.mu.Lock()
	if t == (kube.Trouble{}) {
		delete(l.r.trouble, k)
	} else {
		l.r.trouble[k] = t
	}
	l.r.mu.Unlock()
	l.changed.add(k)
}

// ready returns why this process is not ready. A process that does not lead counts as ready.
func (l *leader) ready(*http.Request) error {
	c := l.controller.Load()
	if c == nil {
		return nil
	}
	select {
	case <-l.r.synced:
		return nil
	default:
		return errors.New("not all services are reconciled yet")
	}
}

// listen opens the UDP socket for daemons.
func listen(address string) (*net.UDPConn, error) {
	conn, err := wire.Listen(address)
	if err != nil {
		return nil, fmt.Errorf("wire address %q: %w", address, err)
	}
	return conn, nil
}

// register adds the reconcilers and the leader to the manager.
func (l *leader) register() error {
	b := ctrl.NewControllerManagedBy(l.mgr).Named("wangellservice").
		For(&v1alpha1.WangellService{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&appsv1.Deployment{}).Owns(&corev1.Service{}).Owns(&discoveryv1.EndpointSlice{}).
		WatchesRawSource(l.changed.source())
	l.r.again = l.changed.add
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

// readPools replaces the pools by those in the ConfigMap. One that cannot be parsed changes nothing.
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
	rules, err := ParseAddressRules(m.Data["addressRules"])
	if err != nil {
		l.log.Error(fmt.Sprintf("ConfigMap %s, key addressRules: %v; pools and rules stay as they are", l.cfg.PoolsFrom, err))
		return reconcile.Result{}, nil
	}
	l.r.setPools(append(append(Pools(nil), l.cfg.Pools...), pools...), rules)
	l.log.Info("pools of service addresses", "pools", pools.String())
	return reconcile.Result{}, nil
}
