// SPDX-License-Identifier: Apache-2.0

// Package node implements the daemon of a node. It manages the node's gate, keeps the table of services, reports to the
// controller what the gate and the container runtime observe, and detects when pods listen.
//
// No traffic passes through the daemon. When it stops or crashes, the gate keeps running, and the next daemon adopts
// it.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// Config configures a daemon.
type Config struct {
	// Server is the controller's UDP address, host:port; empty if Follow provides it.
	Server string
	// Follow calls moved with the controller's address, now and whenever it changes, until ctx ends. Optional.
	Follow func(ctx context.Context, moved func(addr string))
	// Key is shared with the controller and seals the messages to it.
	Key wire.Key
	// Node is the name of this node.
	Node string
	// NodeAddr is this node's IPv4 address, to which other nodes send packets for its pods; zero if there is only one
	// node.
	NodeAddr netip.Addr
	// EncapPort is the UDP port of such packets, the same on all nodes; 0 if there is only one node.
	EncapPort uint16
	// CRI is the endpoint of the container runtime (internal/cri); if empty, the daemon does not observe pods there.
	CRI string
	// RunDir is the daemon's folder. A second daemon with the same folder waits until the first has ended.
	RunDir string
	// BPFDir is a folder for the gate's pins in an existing bpf file system. If empty, the gate mounts one on
	// RunDir/bpf.
	BPFDir string
	// ServiceRanges contain the service addresses.
	ServiceRanges []netip.Prefix
	// Interfaces are the external interfaces. The default is the interfaces with a default route.
	Interfaces []string
	// XDPMode is auto, native, generic or off. The default is auto.
	XDPMode string
	// Shortcut lets connections of pods on this node bypass its network stack once the stack has accepted their SYN.
	Shortcut bool
	// MetricsSocket (a unix socket) and MetricsAddress (host:port) serve /metrics (Prometheus), /healthz and /readyz
	// over HTTP. Each is optional.
	MetricsSocket, MetricsAddress string
	// Sizes are the limits of the gate's maps.
	Sizes gate.Sizes
	Log   *slog.Logger
	// Ready is called when the gate is attached and holds the first table of services. Optional.
	Ready func()
	// Clean reports, after ctx has ended, whether to remove the gate. If it is nil or returns false, the gate keeps
	// running without a daemon.
	Clean func() bool
}

// Run runs the daemon until ctx ends. It returns an error if the daemon cannot start, or not end cleanly.
func Run(ctx context.Context, cfg Config) (err error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if len(cfg.Interfaces) == 0 {
		if cfg.Interfaces, err = gate.DefaultInterfaces(); err != nil {
			return err
		}
		if len(cfg.Interfaces) == 0 {
			cfg.Log.Warn("no interface has a default route: only clients on this machine reach services " +
				"(see --interface)")
		}
	}
	unlock, err := lock(ctx, cfg.RunDir, cfg.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	g, err := gate.Open(gate.Config{
		Dir: cfg.RunDir, BPFDir: cfg.BPFDir, ServiceRanges: cfg.ServiceRanges, Interfaces: cfg.Interfaces,
		EncapPort: cfg.EncapPort, NodeAddr: cfg.NodeAddr,
		XDPMode: gate.XDPMode(cfg.XDPMode), Shortcut: cfg.Shortcut, Sizes: cfg.Sizes, Log: cfg.Log,
	})
	if err != nil {
		return err
	}
	for name, mode := range g.Attached() {
		cfg.Log.Info("gate attached", "interface", name, "xdp", mode)
	}
	clean, err := newDaemon(cfg, g).run(ctx)
	err = errors.Join(err, g.Close())
	if clean {
		err = errors.Join(err, remove(cfg.RunDir, cfg.BPFDir))
	}
	return err
}

// Clean removes the gate that an ended daemon left behind: programs, maps, devices, and the bpf file system unless
// bpfDir names a folder in another one. It must be called in the gate's network namespace. It does nothing if there is
// no gate, and fails while a daemon runs.
func Clean(runDir, bpfDir string) error {
	unlock, err := tryLock(runDir)
	if err != nil {
		return err
	}
	return errors.Join(remove(runDir, bpfDir), unlock())
}

func remove(runDir, bpfDir string) error {
	if err := (&gate.Config{Dir: runDir, BPFDir: bpfDir}).Remove(); err != nil {
		return fmt.Errorf("removing the gate of %s: %w", runDir, err)
	}
	return nil
}
