// SPDX-License-Identifier: Apache-2.0

// Package node is the daemon: it holds the gate of one node, follows the table of services, tells the
// controller what the gate and the container runtime see, and knows by the kernel's word when a pod listens.
//
// Traffic does not pass through it. When it stops or crashes, the gate goes on; the next daemon adopts it.
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

// Config says what daemon to run.
type Config struct {
	// Server is the controller's UDP address, host:port; empty if Follow tells it.
	Server string
	// Follow tells moved where the controller is, and whenever that changes, until ctx ends. It may be nil.
	Follow func(ctx context.Context, moved func(addr string))
	// Key seals what is said to the controller.
	Key wire.Key
	// Node is this node's name.
	Node string
	// NodeAddr is this node's address (IPv4), to which other nodes send packets for its pods; the zero value if there
	// is one node only.
	NodeAddr netip.Addr
	// EncapPort is the UDP port of such packets, the same on all nodes; 0 if there is one node only.
	EncapPort uint16
	// CRI is the socket of the container runtime (internal/cri); empty if pods are not to be seen there.
	CRI string
	// RunDir is the daemon's folder. No two daemons run in one: the second waits.
	RunDir string
	// BPFDir is a folder for the gate's pins in a bpf file system that is there already; if empty, one is mounted on
	// RunDir/bpf.
	BPFDir string
	// ServiceRanges hold the service addresses.
	ServiceRanges []netip.Prefix
	// Interfaces are the external interfaces; none means those with a default route.
	Interfaces []string
	// XDPMode is auto, native, generic or off; empty is auto.
	XDPMode string
	// Shortcut has connections of pods on this node go round its stack once it has let their SYN pass.
	Shortcut bool
	// MetricsSocket and MetricsAddress (host:port) are where /metrics (Prometheus), /healthz and /readyz are served
	// over HTTP; empty serves none.
	MetricsSocket, MetricsAddress string
	// Sizes are the limits of the gate's tables.
	Sizes gate.Sizes
	Log   *slog.Logger
	// Ready is called once the gate is attached and the first table of services is in it. It may be nil.
	Ready func()
	// Clean is asked when ctx has ended whether to remove the gate; otherwise, and if it is nil, it goes on without a
	// daemon.
	Clean func() bool
}

// Run runs the daemon until ctx ends. An error means that it could not start.
func Run(ctx context.Context, cfg Config) (err error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if len(cfg.Interfaces) == 0 {
		if cfg.Interfaces, err = gate.DefaultInterfaces(); err != nil {
			return err
		}
		if len(cfg.Interfaces) == 0 {
			cfg.Log.Warn("no interface has a default route: only clients on this machine reach services (see --interface)")
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
	d := newDaemon(cfg, g)
	err = d.run(ctx)
	err = errors.Join(err, g.Close())
	if d.cleaning {
		err = errors.Join(err, remove(cfg.RunDir, cfg.BPFDir))
	}
	return err
}

// Clean removes the gate of a daemon that does not run: programs, maps, the bpf file system (unless bpfDir is a folder in
// another's) and the gate's devices. It must be called in the network namespace of the gate. A gate that is not
// there is not an error; a daemon that runs is.
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
