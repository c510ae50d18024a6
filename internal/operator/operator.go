// SPDX-License-Identifier: Apache-2.0

// Package operator is the Kubernetes side of the controller: it gives every WangellService a Deployment, a Service, an
// EndpointSlice and an address, tells the controller of it, and tells in its status and in Events what becomes of it.
//
// Of several processes one leads, by a Lease: only that one reconciles and talks to daemons. What shall be is decided by
// pure functions (objects.go, pools.go, replicas.go, statusOf); the rest of the package carries it out.
package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
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
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime/kube"
	"wangell.loutres.me/internal/wire"
)

// Name is an object's namespace and name.
type Name struct{ Namespace, Name string }

// String is "namespace/name"; empty of the zero value.
func (n Name) String() string {
	if n == (Name{}) {
		return ""
	}
	return n.Namespace + "/" + n.Name
}

// Config configures a process of the operator.
type Config struct {
	// Rest reaches the API server.
	Rest *rest.Config
	// Key is that of the wire.
	Key wire.Key
	// Pools are the addresses to give; more come from PoolsFrom.
	Pools Pools
	// PoolsFrom is a ConfigMap with pools under the key "addresses", as ParsePoolsYAML reads them. It may be left out.
	PoolsFrom Name
	// WireAddress is where daemons are listened for (UDP), host:port.
	WireAddress string
	// Identity is the holder of the Lease when this process leads: "POD/IP:PORT", the address of the wire. Daemons
	// connect to what they read there.
	Identity string
	Lease    Name
	// LeaseDuration is for how long a leader that is silent still is one; it gives up after RenewDeadline, and
	// everybody tries every RetryPeriod.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Namespace is the only one whose services are looked after; empty for all.
	Namespace string
	// StartThroughDeployment: the pods of a wake are made by the Deployment; see kube.Config.
	StartThroughDeployment bool
	// MetricsAddress and HealthAddress are where HTTP is served, host:port; empty for nowhere.
	MetricsAddress, HealthAddress string
	// Log may be nil.
	Log *slog.Logger
}

// ErrLostLease: another process leads now.
var ErrLostLease = errors.New("the lease was lost: another controller leads")

// Run runs until ctx ends, or the lease is lost. Pods and traffic are left as they are.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	log := logr.FromSlogHandler(quiet{cfg.Log.Handler()})
	ctrl.SetLogger(log)
	restConfig := rest.CopyConfig(cfg.Rest)
	restConfig.QPS = -1 // a wake waits for no rate limit; what is written is limited where it is decided
	typed, err := kube.NewClient(restConfig)
	if err != nil {
		return err
	}
	mgr, err := newManager(cfg, restConfig, typed, log)
	if err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	r := newReconciler(mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder(fieldManager), cfg.Pools)
	l := &leader{cfg: cfg, log: cfg.Log, client: typed, mgr: mgr, r: r}
	if err := l.register(); err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	if err := mgr.AddReadyzCheck("leader", l.ready); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	// The Lease is released only by who ends it: the manager stops what the leader does before.
	if err := mgr.Start(ctx); err != nil && ctx.Err() == nil {
		if err.Error() == "leader election lost" {
			return ErrLostLease
		}
		return fmt.Errorf("operator: %w", err)
	}
	return nil
}

// newManager makes the manager with caches of nothing but what is the operator's.
func newManager(cfg Config, restConfig *rest.Config, typed kubernetes.Interface, log logr.Logger) (manager.Manager, error) {
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
	grace := 10 * time.Second
	return ctrl.NewManager(restConfig, ctrl.Options{
		Scheme: scheme, Cache: caches, Logger: log,
		Metrics: metricsserver.Options{BindAddress: metricsAddress}, HealthProbeBindAddress: healthAddress,
		LeaderElection: true, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &cfg.LeaseDuration, RenewDeadline: &cfg.RenewDeadline, RetryPeriod: &cfg.RetryPeriod,
		LeaderElectionResourceLockInterface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Lease.Namespace, Name: cfg.Lease.Name},
			Client:     typed.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.Identity},
		},
		GracefulShutdownTimeout: &grace,
		Controller:              ctrlconfig.Controller{MaxConcurrentReconciles: 4, SkipNameValidation: &anyName},
	})
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

// ready tells why this process could not lead, or does not yet.
func (l *leader) ready(*http.Request) error {
	c := l.controller.Load()
	if c == nil {
		return nil // another one leads, and this one waits
	}
	select {
	case <-l.r.synced:
		return nil
	default:
		return errors.New("services are still being looked at")
	}
}

// listen opens the socket for daemons.
func listen(address string) (*net.UDPConn, error) {
	a, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, fmt.Errorf("wire address %q: %w", address, err)
	}
	conn, err := net.ListenUDP("udp", a)
	if err != nil {
		return nil, fmt.Errorf("wire address %q: %w", address, err)
	}
	return conn, nil
}
