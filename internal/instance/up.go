// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"wangell.loutres.me/internal/buildinfo"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/dashboard"
	"wangell.loutres.me/internal/egress"
	"wangell.loutres.me/internal/localapi"
	"wangell.loutres.me/internal/manifest"
	"wangell.loutres.me/internal/poddns"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/runtime/podnet"
	"wangell.loutres.me/internal/traces"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/internal/zram"
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

// Up runs an instance until ctx is cancelled or a part of it fails for good, and then removes all of it. What a killed
// instance with the same run folder left is adopted: pods and connections go on. Nothing is started before manifests,
// rights and configuration have been checked. Mistakes in some manifests are an error only if no service is left.
func Up(ctx context.Context, o Options) (err error) {
	set, err := o.Manifests.Load(ctx)
	if err != nil && len(set) == 0 {
		return err
	}
	if err := errors.Join(o.Validate(), checkRights(ctx, o.Config), checkLoopback(),
		checkInterfaces(o.Interfaces)); err != nil {
		if ctx.Err() != nil {
			return nil // asked to exit before anything was started: the checks were cut off
		}
		return err
	}
	if o.Netns, err = ownNetns(); err != nil {
		return err
	}
	l, err := acquire(o.Config)
	if err != nil {
		return err
	}
	kept, killed, err := load(o.RunDir)
	if err == nil && killed {
		err = o.adopts(kept)
	}
	if err != nil {
		return errors.Join(err, l.release())
	}
	state, err := acquireState(o.Config)
	if err != nil {
		if killed {
			return errors.Join(err, l.release())
		}
		return errors.Join(err, l.remove())
	}
	defer state.Close()
	if killed {
		o.Log.Info("adopting what a killed instance left")
	}
	u := &up{Options: o, set: set, adopts: killed, failed: make(chan error, 1)}
	if err = u.start(ctx); err == nil {
		select {
		case <-ctx.Done():
		case err = <-u.failed:
		}
	}
	o.Log.Info("shutting down")
	stopErr := u.stop()
	left := killed && u.runtime == nil // what the killed instance left could not be adopted,
	if left && err == nil {            // or Up was asked to exit before that
		stopErr, left = errors.Join(stopErr, destroy(context.WithoutCancel(ctx), o.Config)), false
	}
	if stopErr != nil || left {
		// The run folder stays, with the configuration: with that, wangell down finds what is left.
		return errors.Join(err, stopErr, l.release())
	}
	return errors.Join(err, l.remove())
}

// adopts returns why an instance with this configuration cannot adopt what one with another configuration left.
func (c Config) adopts(left Config) error {
	for _, f := range []struct{ flag, want, left string }{
		{"--state-dir", c.StateDir, left.StateDir},
		{"--addresses", c.Addresses.String(), left.Addresses.String()},
		{"--pod-addresses", c.PodAddresses.String(), left.PodAddresses.String()},
		{"--containerd", c.Containerd, left.Containerd},
		{"--snapshotter", c.snapshotter(), left.snapshotter()},
	} {
		if f.want != f.left {
			return fmt.Errorf("%s belongs to a killed instance with %s %s, this one has %s: run 'wangell down' first",
				c.RunDir, f.flag, f.left, f.want)
		}
	}
	if c.Netns != left.Netns {
		return fmt.Errorf("%s belongs to a killed instance in another network namespace: run 'wangell down' first", c.RunDir)
	}
	return nil
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

// start starts the parts. After an error, stop ends those that started.
func (u *up) start(ctx context.Context) (err error) {
	if err := u.save(); err != nil {
		return fmt.Errorf("save the configuration: %w", err)
	}
	// Errors of parts that were cut off by a signal while they started are not reported.
	defer func() {
		if ctx.Err() != nil && err != nil {
			u.Log.Debug("the start was cut off", "error", err)
			err = nil
		}
	}()
	if err := u.setSwap(); err != nil {
		return err
	}
	if u.key, err = loadOrMakeKey(u.keyFile()); err != nil {
		return err
	}
	if u.conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0"))); err != nil {
		return fmt.Errorf("socket for the daemon: %w", err)
	}
	server := u.conn.LocalAddr().String()
	if u.metrics, err = listenMetrics(u.MetricsAddress); err != nil {
		return err
	}
	if u.UIAddress != "" {
		if u.ui, err = dashboard.Listen(u.UIAddress); err != nil {
			return err
		}
	}
	if err := u.startRuntime(ctx); err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name of this node: %w", err)
	}
	sent, err := traces.FromEnvironment(ctx, "wangell", buildinfo.Version, u.Log)
	if err != nil {
		return err
	}
	u.stopParts = append(u.stopParts, func() error { return closeTraces(sent, u.Log) })
	u.history = newHistories(u.StateDir, u.Log)
	u.controller, err = controller.New(controller.Config{
		Runtime: u.runtime, Conn: u.conn, Key: u.key, Keepalive: keepalive, Node: name, Log: u.Log,
		MaxServices: int(u.Sizes.Services), Wake: sent.Put, Caller: sent.Join, Learnt: u.history.learnt,
	})
	if err != nil {
		return err
	}
	u.conn = nil // the controller's now
	if u.services, err = newServices(u.controller, u.Log, u.StateDir, u.Addresses, u.publish); err != nil {
		return err
	}
	u.services.history = u.history
	u.services.volumes = &volumes{remove: u.runtime.RemoveVolume, log: u.Log}
	u.services.ports.off = u.egress == nil
	if err := u.services.apply(ctx, u.set); err != nil {
		return err
	}
	u.proxy = &proxy{path: u.Envoy, dir: u.socketDir(), nets: u.runtime, log: u.Log,
		hidden: u.controller.ReportHiddenClients}
	requests := envoyWishOf(u.set)
	wanted := len(u.set) > 0 || u.adopts
	u.set = nil // the controller's now
	u.daemon = u.newDaemon(name, server)
	if u.Started != nil {
		u.Started(u.controller)
	}
	u.newDashboard()
	if err := u.serveControl(); err != nil {
		return err
	}
	u.serveMetrics()
	u.serveUI()
	if wanted {
		u.daemon.start()
	} else {
		u.daemon.once.Do(u.Ready)
	}
	u.proxy.want(requests)
	u.watch()
	return nil
}

// setSwap makes the zram device that is asked for, or removes that of a killed instance.
func (u *up) setSwap() error {
	if u.Zram == 0 {
		return zram.Remove(u.zramFile())
	}
	if err := zram.Add(u.zramFile(), u.Zram); err != nil {
		return fmt.Errorf("--zram: %w", err)
	}
	return nil
}

// startRuntime starts the runtime, and what pods need around them: a name server and a way to other networks.
func (u *up) startRuntime(ctx context.Context) (err error) {
	u.names = poddns.New(poddns.Config{
		ResolvConf: u.ResolvConf, Own: []netip.Prefix{u.Addresses, u.PodAddresses, podnet.Links}, Log: u.Log,
	})
	if u.NoEgress {
		err = egress.Remove(u.Config.egress(u.Log)) // a killed instance may have had one
	} else {
		if u.egress, err = egress.Open(u.Config.egress(u.Log)); err != nil {
			u.Log.Warn("pods reach services and this machine only; --egress=false ends this warning", "error", err)
			err = nil
		}
	}
	if err != nil {
		return err
	}
	config := u.runtimeConfig(u.Log)
	config.Forward, config.Names = u.egress != nil, u.names
	if u.runtime, err = containerd.New(ctx, config); err != nil {
		return err
	}
	return u.noteSnapshotter()
}

// publish makes the services known to pods, and at ports of the machine.
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
// neither outlives the other unnoticed, so keepalives find nothing but a process that hangs. With the default, which is
// for nodes of a cluster, an idle instance would use the CPU for little else.
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
	d.child = child{name: "daemon", path: selfExe, args: args, log: u.Log, ready: func() { d.once.Do(ready) }}
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
	u.parts.Go(func() {
		err := u.Manifests.Watch(ctx, func(set manifest.Set, err error) {
			u.broken.set(err)
			if err != nil && ctx.Err() == nil {
				u.Log.Error("these manifests are not applied: their services stay as they were", "error", err)
			}
			if err := u.services.apply(ctx, set); err != nil {
				if ctx.Err() == nil {
					u.Log.Error("manifests are not applied: nothing is changed", "error", err)
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

// closeTraces sends the traces that are left. That is worth two seconds, and no error.
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
	server, err := localapi.Serve(localapi.Config{
		Path: u.controlSocket(), Services: local{u.controller, u.daemon, u.services}, Broken: u.broken.get, Log: u.Log,
		Dashboard: u.dashboard.Handler,
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
			local{u.controller, u.daemon, u.services}.Ready),
		ReadHeaderTimeout: metricsTimeout, ReadTimeout: metricsTimeout, IdleTimeout: time.Minute,
	}
	u.stopParts = append(u.stopParts, server.Close)
	u.parts.Go(func() {
		if err := server.Serve(u.metrics); !errors.Is(err, http.ErrServerClosed) {
			u.Log.Error("metrics are no longer served", "error", err)
		}
	})
}

// stop stops the parts, each before those that it needs, and removes what they made: first the parts that give
// orders, then the pods (while the daemon still counts their connections), the daemon, containerd, and the gate.
func (u *up) stop() error {
	var errs []error
	for _, stop := range u.stopParts {
		errs = append(errs, stop())
	}
	if u.controller != nil {
		if err := u.controller.Shutdown(u.Force); err != nil {
			u.Log.Warn("pods did not end in time and are killed", "error", err)
		}
	}
	if u.proxy != nil {
		u.proxy.stop()
	}
	if u.daemon != nil {
		u.daemon.stop()
	}
	u.parts.Wait()
	if u.history != nil {
		u.history.close()
	}
	if u.conn != nil {
		errs = append(errs, u.conn.Close())
	}
	for _, l := range []net.Listener{u.metrics, u.ui} {
		if l != nil {
			errs = append(errs, ignoreClosed(l.Close()))
		}
	}
	if u.runtime != nil {
		errs = append(errs, destroyRuntime(u.runtime))
	}
	errs = append(errs, zram.Remove(u.zramFile())) // now that no pod has memory there
	if u.services != nil {
		u.services.ports.close()
	}
	errs = append(errs, removeGate(u.Config))
	if u.names != nil {
		u.names.Close()
	}
	if u.egress != nil {
		errs = append(errs, u.egress.Close())
	}
	return errors.Join(errs...)
}

// ignoreClosed ignores the error of closing twice.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
