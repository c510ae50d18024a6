// SPDX-License-Identifier: Apache-2.0

// Package operator is the Kubernetes side of the controller. It gives every WangellService a Deployment, a Service,
// an EndpointSlice and an address, passes it to the controller, and reports its state in its status and in Events.
//
// One of several processes leads, by a Lease: only the leader reconciles, and daemons connect to it. Pure functions
// decide the wanted objects and status (objects, updates, pools, replicas, conditions); the rest of the package
// applies them.
package operator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/buildinfo"
	"wangell.loutres.me/internal/base/ownhost"
	"wangell.loutres.me/internal/base/pin"
	"wangell.loutres.me/internal/controller/traces"
	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/runtime/kube"
)

// tracesTimeout bounds the time to send the last traces.
const tracesTimeout = 2 * time.Second

// Run runs the operator until ctx ends, or returns ErrLostLease. Pods and traffic go on without it.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	log := logr.FromSlogHandler(quiet{cfg.Log.Handler()})
	ctrl.SetLogger(log)
	restConfig := rest.CopyConfig(cfg.Rest)
	restConfig.QPS = -1 // no rate limit may delay a wake; writes are limited where they are decided
	typed, err := kube.NewClient(restConfig)
	if err != nil {
		return err
	}
	certificate, err := newCertificate(cfg)
	if err != nil {
		return err
	}
	enrol, err := newEnrolment(cfg, typed, certificate)
	if err != nil {
		return err
	}
	mgr, err := newManager(cfg, restConfig, typed, log, certificate)
	if err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	r := newReconciler(mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder(fieldManager), cfg.Pools)
	r.nodePorts, r.lazy, r.requests = cfg.NodePorts, cfg.Lazy, cfg.Requests
	r.fronts.watched = cfg.Requests && cfg.Fronts != (Name{})
	l := &leader{cfg: cfg, log: cfg.Log, client: typed, mgr: mgr, r: r, enrolment: enrol}
	if l.traces, err = traces.FromEnvironment(ctx, "wangell-controller", buildinfo.Version, cfg.Log); err != nil {
		return err
	}
	defer closeTraces(ctx, l.traces, cfg.Log)
	if err := l.register(); err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	if cfg.APIAddress != "" {
		if err := mgr.Add(&people{leader: l, certificate: *certificate}); err != nil {
			return fmt.Errorf("operator: %w", err)
		}
	}
	if err := mgr.AddReadyzCheck("leader", l.ready); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	// The manager stops the leader before it releases the Lease, and returns after that.
	err = mgr.Start(ctx)
	l.handOver()
	if err != nil && ctx.Err() == nil {
		if err.Error() == "leader election lost" {
			return ErrLostLease
		}
		return fmt.Errorf("operator: %w", err)
	}
	return nil
}

// closeTraces sends the traces that are left.
func closeTraces(ctx context.Context, e *traces.Exporter, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracesTimeout)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		log.Warn("the last traces of wakes were not sent", "error", err)
	}
}

// newManager returns a manager that caches only objects of the operator. The runtime uses its cache of Deployments,
// too.
func newManager(
	cfg Config, restConfig *rest.Config, typed kubernetes.Interface, log logr.Logger, certificate *tls.Certificate,
) (manager.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	labelled, err := labels.NewRequirement(v1alpha1.LabelService, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	own := cache.ByObject{Label: labels.NewSelector().Add(*labelled)}
	caches := cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&appsv1.Deployment{}: own, &corev1.Service{}: own, &discoveryv1.EndpointSlice{}: own,
		},
	}
	if cfg.Namespace != "" {
		caches.DefaultNamespaces = map[string]cache.Config{cfg.Namespace: {}}
	}
	if n := cfg.PoolsFrom; n != (Name{}) {
		caches.ByObject[&corev1.ConfigMap{}] = cache.ByObject{
			Namespaces: map[string]cache.Config{n.Namespace: {}}, Field: fields.OneTermEqualSelector("metadata.name", n.Name),
		}
	}
	anyName, nowhere := true, "0"
	metricsAddress := cfg.MetricsAddress
	if metricsAddress == "" {
		metricsAddress = nowhere
	}
	healthAddress := cfg.HealthAddress
	if healthAddress == "" {
		healthAddress = nowhere
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Lease.Namespace, Name: cfg.Lease.Name},
		Client:     typed.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.Identity},
	}
	if certificate != nil {
		lock.Labels = map[string]string{v1alpha1.LabelCertificate: pin.Fingerprint(*certificate)}
	}
	grace := 10 * time.Second
	return ctrl.NewManager(restConfig, ctrl.Options{
		Scheme: scheme, Cache: caches, Logger: log,
		Metrics:                metricsserver.Options{BindAddress: metricsAddress, FilterProvider: guarded},
		HealthProbeBindAddress: healthAddress,
		LeaderElection:         true, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &cfg.LeaseDuration, RenewDeadline: &cfg.RenewDeadline, RetryPeriod: &cfg.RetryPeriod,
		LeaderElectionResourceLockInterface: lock, GracefulShutdownTimeout: &grace,
		Controller: ctrlconfig.Controller{MaxConcurrentReconciles: 4, SkipNameValidation: &anyName},
	})
}

// guarded keeps web pages away from the metrics, which ask nobody for a password.
func guarded(*rest.Config, *http.Client) (metricsserver.Filter, error) {
	return func(_ logr.Logger, next http.Handler) (http.Handler, error) { return ownhost.Guard(next), nil }, nil
}

// newCertificate returns the certificate for the TLS servers of the leader; nil if it has none.
func newCertificate(cfg Config) (*tls.Certificate, error) {
	if cfg.DaemonAccount == (Name{}) && cfg.APIAddress == "" {
		return nil, nil
	}
	c, err := pin.NewCertificate("wangell controller", time.Now())
	return &c, err
}

// newEnrolment returns the server that gives daemons the keys of their nodes; nil without DaemonAccount.
func newEnrolment(
	cfg Config, typed kubernetes.Interface, certificate *tls.Certificate,
) (*enrolment.Server, error) {
	if cfg.DaemonAccount == (Name{}) {
		return nil, nil
	}
	results := enrolment.NewResults()
	if err := metrics.Registry.Register(results); err != nil {
		if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
			results = there.ExistingCollector.(*prometheus.CounterVec)
		} else {
			return nil, err
		}
	}
	reviewer := &enrolment.Reviewer{API: typed, Namespace: cfg.DaemonAccount.Namespace, Account: cfg.DaemonAccount.Name}
	return &enrolment.Server{
		Master: cfg.Key, Node: reviewer.Node, Certificate: *certificate, Log: cfg.Log, Results: results,
	}, nil
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, discoveryv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}
