// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"wangell.loutres.me/internal/base/buildinfo"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/controller/traces"
	"wangell.loutres.me/internal/machine/egress"
	"wangell.loutres.me/internal/machine/poddns"
	"wangell.loutres.me/internal/machine/zram"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/runtime/podnet"
	"wangell.loutres.me/internal/show/dashboard"
)

// Up runs an instance until ctx is cancelled or a part of it fails for good, and then removes all of it. It adopts
// the state of a killed instance with the same run folder: pods and connections go on. Nothing is started before
// manifests, rights and configuration have been checked. Mistakes in some manifests are an error only if no service
// is left.
func Up(ctx context.Context, o Options) (err error) {
	set, err := o.Manifests.Load(ctx)
	if err != nil && len(set) == 0 {
		return err
	}
	if err := errors.Join(o.Validate(), checkRights(ctx, o.Config), checkLoopback(),
		checkInterfaces(o.Interfaces)); err != nil {
		if ctx.Err() != nil {
			return nil // asked to exit before anything was started: the checks were interrupted
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
	if err == nil {
		if err = endOrphan(o.Config, o.Log); err != nil {
			state.Close()
		}
	}
	if err != nil {
		if killed {
			return errors.Join(err, l.release())
		}
		return errors.Join(err, l.remove())
	}
	defer state.Close()
	if err := noteRunDir(state, o.RunDir); err != nil { // as on a full disk, on which services run all the same
		o.Log.Warn("commands for volumes must be given this --run-dir: it is not recorded", "error", err)
	}
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

// adopts returns why an instance with this configuration cannot adopt the state of one with another configuration.
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

// start starts the parts. After an error, stop ends those that started.
func (u *up) start(ctx context.Context) (err error) {
	if err := u.save(); err != nil {
		return fmt.Errorf("save the configuration: %w", err)
	}
	// Errors of parts that a signal interrupted while they started are not reported.
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
		MaxServices: int(u.Sizes.Services), Wake: sent.Put, Caller: sent.Join, OnHistory: u.history.record,
	})
	if err != nil {
		return err
	}
	u.conn = nil // the controller closes it
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
	u.set = nil // services has it
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
	u.thawWithoutDaemon()
	return nil
}

// setSwap makes the configured zram device, or removes the one that a killed instance has left.
func (u *up) setSwap() error {
	if u.Zram == 0 {
		return zram.Remove(u.zramFile())
	}
	if err := zram.Add(u.zramFile(), u.Zram); err != nil {
		return fmt.Errorf("--zram: %w", err)
	}
	return nil
}

// startRuntime starts the runtime, and the surroundings of pods: a name server and a way to other networks.
func (u *up) startRuntime(ctx context.Context) (err error) {
	u.names = poddns.New(poddns.Config{
		ResolvConf: u.ResolvConf, Own: []netip.Prefix{u.Addresses, u.PodAddresses, podnet.Links}, Log: u.Log,
	})
	way := u.Config.egress(u.Log)
	// Before the table, whose rules are about the devices' names.
	if err := podnet.RenameDevices(way.FormerPrefix, way.DevicePrefix); err != nil {
		return fmt.Errorf("pods of an earlier version: %w", err)
	}
	if u.NoEgress {
		err = egress.Remove(way) // a killed instance may have had one
	} else {
		if u.egress, err = egress.Open(way); err != nil {
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

// stop stops the parts, each before those that it needs, and removes what they made: first the controlling parts,
// then the pods (while the daemon still counts their connections), the daemon, containerd, and the gate.
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
