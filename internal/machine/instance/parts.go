// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/buildinfo"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/controller/traces"
	"wangell.loutres.me/internal/machine/egress"
	"wangell.loutres.me/internal/machine/manifest"
	"wangell.loutres.me/internal/machine/poddns"
	"wangell.loutres.me/internal/node"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/show/dashboard"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/wire"
)

// Options are the parameters of Up beside the configuration.
type Options struct {
	Config
	// Manifests are the services. They are watched for changes.
	Manifests *manifest.Reader
	Log       *slog.Logger
	// Force, once cancelled, ends waiting for pods to end by themselves.
	Force context.Context
	// Started is called once the controller has the services, before the gate is attached.
	Started func(*controller.Controller)
	// Ready is called once: when the gate is attached and has the services, or when the instance runs without a service.
	Ready func()
}

// up is a running instance: its parts, in the order in which they start.
type up struct {
	Options
	set    manifest.Set
	adopts bool       // a killed instance may have left a gate
	failed chan error // the first error that ends the instance
	broken brokenFiles

	conn       *net.UDPConn
	key        wire.Key
	metrics    net.Listener
	ui         net.Listener // nil if the dashboard has no address
	dashboard  *dashboard.Dashboard
	egress     *egress.Egress // nil if pods have no way to other networks
	names      *poddns.Server
	runtime    *containerd.Runtime
	controller *controller.Controller
	history    *histories
	services   *services
	daemon     *daemon
	proxy      *proxy
	stopParts  []func() error // stop what runs beside the runtime, the controller and the daemon
	parts      sync.WaitGroup
}

// fail ends the instance.
func (u *up) fail(err error) {
	select {
	case u.failed <- err:
	default:
	}
}

// publish announces the services to pods, and publishes them at ports of the machine.
func (u *up) publish(p publication) {
	services := make(map[poddns.Name]netip.Addr, len(p.services))
	for k, addr := range p.services {
		namespace, name := k.Split()
		services[poddns.Name{Namespace: namespace, Name: name}] = addr
	}
	u.names.SetServices(services)
	if u.egress == nil {
		return
	}
	if err := u.egress.SetServices(p.lead, p.ports); err != nil {
		u.Log.Error("packets to services may be rejected", "error", err)
	}
}

// keepalive is the interval of keepalives between daemon and controller. The daemon is a child of this process, and
// neither outlives the other unnoticed, so keepalives only detect a process that hangs. With the default interval,
// which suits nodes of a cluster, they would be most of an idle instance's CPU usage.
const keepalive = 3 * time.Second

// newDaemon returns the daemon, not started yet.
func (u *up) newDaemon(name, server string) *daemon {
	args := []string{
		"daemon", "--server", server, "--key-file", u.keyFile(), "--node", name, "--run-dir", u.RunDir,
		"--keepalive", keepalive.String(),
		"--addresses", u.Addresses.String(), "--xdp-mode", u.XDPMode, "--metrics-socket", u.daemonSocket(),
		"--log-format", "json", "--log-level", u.logLevel(), "--containerd", u.runtime.Address(),
		"--envoy-socket", u.envoySocket(), "--envoy-user", strconv.Itoa(envoyUser),
	}
	for _, i := range u.Interfaces {
		args = append(args, "--interface", i)
	}
	args = append(args, u.GateArgs()...)
	d := &daemon{fail: u.fail}
	ready := func() {
		if u.egress != nil {
			if err := u.egress.Refresh(); err != nil {
				u.Log.Error("services are not published on loopback addresses", "error", err)
			}
		}
		u.Ready()
		// Reading many manifests took memory that sleeping services do not need.
		debug.FreeOSMemory()
	}
	exited := func() {
		if err := u.runtime.EndOrphans(); err != nil {
			u.Log.Warn("probes of the daemon that has exited may delay the end of their pods", "error", err)
		}
	}
	d.child = child{name: "daemon", path: selfExe, args: args, log: u.Log, ready: func() { d.once.Do(ready) },
		exited: exited}
	return d
}

// logLevel is the lowest level that is logged.
func (u *up) logLevel() string {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
		if u.Log.Enabled(context.Background(), level) {
			return level.String()
		}
	}
	return slog.LevelError.String()
}

// watch applies manifests when their files change. Services of a file with a mistake stay as they were.
func (u *up) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	u.stopParts = append(u.stopParts, func() error { cancel(); return nil })
	u.parts.Go(func() { u.services.retryPorts(ctx) })
	u.parts.Go(func() {
		err := u.Manifests.Watch(ctx, func(set manifest.Set, err error) {
			u.broken.set(err, nil)
			if err != nil && ctx.Err() == nil {
				u.Log.Error("these manifests are not applied: their services stay as they were", "error", err)
			}
			if applied := u.services.apply(ctx, set); applied != nil {
				if ctx.Err() == nil {
					u.Log.Error("manifests are not applied: nothing is changed", "error", applied)
					u.broken.set(err, applied)
				}
				return
			}
			if len(set) > 0 {
				u.daemon.start()
			}
			u.proxy.want(envoyWishOf(set))
		})
		if err != nil {
			u.Log.Error("manifests are no longer watched for changes", "error", err)
		}
	})
}

// thawWithoutDaemon lets frozen pods run while the daemon is away.
func (u *up) thawWithoutDaemon() {
	ctx, cancel := context.WithCancel(context.Background())
	u.stopParts = append(u.stopParts, func() error { cancel(); return nil })
	u.parts.Go(func() { node.Thawer{RunDir: u.RunDir, Log: u.Log}.Run(ctx) })
}

// closeTraces sends the remaining traces. That may take two seconds, and a failure is not an error.
func closeTraces(e *traces.Exporter, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		log.Warn("the last traces of wakes were not sent", "error", err)
	}
	return nil
}

// serveControl serves the local API.
func (u *up) serveControl() error {
	server, err := httpapi.Serve(httpapi.Config{
		Path: u.controlSocket(), Services: local{u.controller, u.daemon, u.services}, Broken: u.broken.get, Log: u.Log,
		Dashboard: u.dashboard.Handler,
		EndCommand: func(k v1alpha1.Key, id string) {
			if err := u.runtime.EndCommand(k, id); err != nil {
				u.Log.Warn("a command of 'wangell exec' whose client is gone may go on", "error", err)
			}
		},
		Versions: func(ctx context.Context) map[string]string {
			versions := map[string]string{"wangell": buildinfo.Version}
			maps.Copy(versions, u.runtime.Versions(ctx))
			return versions
		},
	})
	if err != nil {
		return err
	}
	u.stopParts = append(u.stopParts, server.Close)
	return nil
}

// serveMetrics serves the metrics, if there is an address for them.
func (u *up) serveMetrics() {
	if u.metrics == nil {
		return
	}
	server := &http.Server{
		Handler: metricsHandler(u.controller.Collector(), u.daemonSocket(),
			local{u.controller, u.daemon, u.services}.Ready, restoredCollector{u.restored}),
		ReadHeaderTimeout: metricsTimeout, ReadTimeout: metricsTimeout, IdleTimeout: time.Minute,
	}
	u.stopParts = append(u.stopParts, server.Close)
	u.parts.Go(func() {
		if err := server.Serve(u.metrics); !errors.Is(err, http.ErrServerClosed) {
			u.Log.Error("metrics are no longer served", "error", err)
		}
	})
}

// ignoreClosed ignores the error of closing twice.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
