// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/manifest"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/wire"
)

// Options are what Up works with beside the configuration.
type Options struct {
	Config
	// Manifests are the services; they are followed as their files change.
	Manifests *manifest.Reader
	Log       *slog.Logger
	// Force, when it ends, ends waiting for pods to end by themselves.
	Force context.Context
	// Started is called once the controller has the services, before the gate is attached.
	Started func(*controller.Controller)
	// Ready is called once the gate is attached and has the services.
	Ready func()
}

// Up runs an instance until ctx ends, or a part of it cannot go on, and removes all of it then. What an
// instance with the same run folder left when it was killed is adopted: pods and connections go on.
// Nothing is started before manifests, rights and configuration are known to be right.
func Up(ctx context.Context, o Options) (err error) {
	set, err := o.Manifests.Load(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(o.Validate(), checkRights(ctx, o.Config), checkLoopback(), checkInterfaces(o.Interfaces)); err != nil {
		if ctx.Err() != nil {
			return nil // told to end before anything was begun: what was asked meanwhile has no answer
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
	if killed {
		o.Log.Info("adopting what an instance that was killed left")
	}
	u := &up{Options: o, set: set, failed: make(chan error, 1)}
	if err = u.start(ctx); err == nil {
		select {
		case <-ctx.Done():
		case err = <-u.failed:
		}
	}
	o.Log.Info("ending")
	stopErr := u.stop()
	left := killed && u.runtime == nil // by the killed instance: it could not be adopted,
	if left && err == nil {            // or Up was told to end before that
		stopErr, left = errors.Join(stopErr, destroy(context.WithoutCancel(ctx), o.Config)), false
	}
	if stopErr != nil || left {
		// The lock's folder stays, with the configuration: wangell down finds by it what is left.
		return errors.Join(err, stopErr, l.release())
	}
	return errors.Join(err, l.remove())
}

// adopts tells why an instance with this configuration cannot adopt what one with another left.
func (c Config) adopts(left Config) error {
	for _, f := range []struct{ flag, want, left string }{
		{"--state-dir", c.StateDir, left.StateDir},
		{"--addresses", c.Addresses.String(), left.Addresses.String()},
		{"--pod-addresses", c.PodAddresses.String(), left.PodAddresses.String()},
		{"--containerd", c.Containerd, left.Containerd},
	} {
		if f.want != f.left {
			return fmt.Errorf("%s has what an instance with %s %s left, this one has %s: run 'wangell down' first", c.RunDir, f.flag, f.left, f.want)
		}
	}
	if c.Netns != left.Netns {
		return fmt.Errorf("%s has what an instance in another network namespace left: run 'wangell down' first", c.RunDir)
	}
	return nil
}

// up is a running instance: its parts, in the order in which they start.
type up struct {
	Options
	set    manifest.Set
	failed chan error // what ends the instance; the first counts

	conn       *net.UDPConn
	key        wire.Key
	metrics    net.Listener
	runtime    *containerd.Runtime
	controller *controller.Controller
	services   *services
	stopParts  []func() error // ends what runs beside the runtime and the controller
	endDaemon  context.CancelFunc
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
		return fmt.Errorf("keep the configuration: %w", err)
	}
	// A signal while parts start is not an error of theirs, whatever they say of being cut off.
	defer func() {
		if ctx.Err() != nil && err != nil {
			u.Log.Debug("the start is cut off", "error", err)
			err = nil
		}
	}()
	if u.key, err = loadOrMakeKey(u.keyFile()); err != nil {
		return err
	}
	if u.conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0"))); err != nil {
		return fmt.Errorf("socket for the daemon: %w", err)
	}
	server := u.conn.LocalAddr().String()
	if err := u.listenMetrics(); err != nil {
		return err
	}
	if u.runtime, err = containerd.New(ctx, u.runtimeConfig(u.Log)); err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name of this node: %w", err)
	}
	u.controller, err = controller.New(controller.Config{
		Runtime: u.runtime, Conn: u.conn, Key: u.key, Node: name, Log: u.Log,
	})
	if err != nil {
		return err
	}
	u.conn = nil // the controller's now
	if u.services, err = newServices(u.controller, u.StateDir, u.Addresses); err != nil {
		return err
	}
	if err := u.services.apply(ctx, u.set); err != nil {
		return err
	}
	u.set = nil // the controller's now
	if u.Started != nil {
		u.Started(u.controller)
	}
	if err := u.serveControl(); err != nil {
		return err
	}
	u.serveMetrics()
	u.startDaemon(name, server)
	u.watch()
	return nil
}

func (c Config) runtimeConfig(log *slog.Logger) containerd.Config {
	return containerd.Config{
		Containerd: c.Containerd, StateDir: c.StateDir, RunDir: c.RunDir, PodAddresses: c.PodAddresses,
		InsecureRegistries: c.InsecureRegistries, Log: log,
	}
}

// startDaemon keeps the daemon running, as a process of its own: traffic does not depend on this one.
func (u *up) startDaemon(name, server string) {
	args := []string{
		"daemon", "--server", server, "--key-file", u.keyFile(), "--node", name, "--run-dir", u.RunDir,
		"--addresses", u.Addresses.String(), "--xdp-mode", u.XDPMode, "--metrics-socket", u.daemonSocket(),
		"--log-format", "json", "--log-level", u.logLevel(),
	}
	for _, i := range u.Interfaces {
		args = append(args, "--interface", i)
	}
	var once sync.Once
	ready := func() {
		u.Ready()
		// Reading ten thousand manifests took memory that sleeping services do not need.
		debug.FreeOSMemory()
	}
	daemon := child{name: "daemon", path: "/proc/self/exe", args: args, log: u.Log, ready: func() { once.Do(ready) }}
	ctx, cancel := context.WithCancel(context.Background())
	u.endDaemon = cancel
	u.parts.Go(func() {
		if err := daemon.keep(ctx); err != nil {
			u.fail(err)
		}
	})
}

// logLevel is the lowest level that the log takes.
func (u *up) logLevel() string {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
		if u.Log.Enabled(context.Background(), level) {
			return level.String()
		}
	}
	return slog.LevelError.String()
}

// watch applies manifests as their files change. A broken file changes nothing.
func (u *up) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	u.stopParts = append(u.stopParts, func() error { cancel(); return nil })
	u.parts.Go(func() {
		err := u.Manifests.Watch(ctx, func(set manifest.Set, err error) {
			if err == nil {
				err = u.services.apply(ctx, set)
			}
			if err != nil && ctx.Err() == nil {
				u.Log.Error("manifests: nothing is changed", "error", err)
			}
		})
		if err != nil {
			u.Log.Error("manifests are not watched any more", "error", err)
		}
	})
}

// stop ends the parts in the order in which nobody misses another, and removes what they made: first no new
// orders, then the pods (whose connections the daemon still sees), the daemon, containerd, the gate.
func (u *up) stop() error {
	var errs []error
	for _, stop := range u.stopParts {
		errs = append(errs, stop())
	}
	if u.controller != nil {
		if err := u.controller.Shutdown(u.Force); err != nil {
			u.Log.Warn("pods are killed", "error", err)
		}
	}
	if u.endDaemon != nil {
		u.endDaemon()
	}
	u.parts.Wait()
	if u.conn != nil {
		errs = append(errs, u.conn.Close())
	}
	if u.metrics != nil {
		errs = append(errs, ignoreClosed(u.metrics.Close()))
	}
	if u.runtime != nil {
		errs = append(errs, destroyRuntime(u.runtime))
	}
	return errors.Join(append(errs, removeGate(u.Config))...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// destroyTimeout bounds the removal of pods that are killed; containerd may hang.
const destroyTimeout = time.Minute

func destroyRuntime(r *containerd.Runtime) error {
	ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
	defer cancel()
	if err := r.Destroy(ctx); err != nil {
		return fmt.Errorf("remove what ran: %w", err)
	}
	return nil
}

// destroy removes what an instance that was killed left.
func destroy(ctx context.Context, c Config) error {
	r, err := containerd.New(ctx, c.runtimeConfig(slog.Default()))
	if err != nil {
		return errors.Join(err, removeGate(c))
	}
	return errors.Join(destroyRuntime(r), removeGate(c))
}
