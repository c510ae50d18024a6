// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/instance"
	"wangell.loutres.me/internal/node"
)

// daemonFlags are what the daemon's command line says beside node.Config.
type daemonFlags struct {
	config      node.Config
	keyFile     string
	addresses   []string
	nodeAddress string
	clean       bool
	cluster     clusterFlags
}

func newDaemon(g *globals) *cobra.Command {
	f := &daemonFlags{}
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Run the gate and the readiness of a node (started by up, or on every node of a cluster)",
		Long: `Daemon loads and attaches the gate, parks and releases SYNs, watches pods enter
LISTEN, and speaks the wire protocol with a controller. When it ends, traffic of warm
services goes on, because the gate is pinned; the next daemon adopts it.

On one machine 'wangell up' starts it and starts it again should it end.

In a cluster a DaemonSet runs it on every node, in the host's network. It follows the
leader of the controllers by their Lease, hears of pods from the node's container
runtime, and exchanges packets with the gates of other nodes over UDP. It needs the
capabilities BPF, PERFMON, NET_ADMIN, NET_RAW and SYS_ADMIN, a bpf file system of the
host, and the network namespaces of pods (/run/netns or hostPID).`,
		GroupID: groupMachine,
		Example: `  sudo wangell daemon --server 127.0.0.1:7465 --key-file /run/wangell/wire.key
  sudo wangell daemon --server 127.0.0.1:7465 --key-file /run/wangell/wire.key --interface eth1 --xdp-mode generic
  wangell daemon --node=node-1 --node-address=192.0.2.11 --lease=wangell/wangell-controller \
    --cri=unix:///run/containerd/containerd.sock --key-file=/etc/wangell/key/wire.key \
    --service-addresses=10.46.100.0/24 --bpf-dir=/sys/fs/bpf/wangell --metrics-address=192.0.2.11:9465`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, g) },
	}
	flags := cmd.Flags()
	c := &f.config
	flags.StringVar(&c.Server, "server", "", "address of the controller, host:port")
	flags.StringVar(&f.keyFile, "key-file", "", "file with the 32 bytes of the wire's key (required)")
	flags.StringVar(&c.Node, "node", "", "name of this node (default: the host name)")
	flags.StringSliceVar(&f.addresses, "service-addresses", []string{instance.DefaultAddresses.String()}, "ranges of the service addresses: CIDR or FIRST-LAST, separated by commas")
	flags.StringSliceVar(&f.addresses, "addresses", []string{instance.DefaultAddresses.String()}, "the same as --service-addresses")
	flags.StringArrayVar(&c.Interfaces, "interface", nil, "device of clients on other machines (repeatable; default: those with a default route)")
	flags.StringVar(&c.XDPMode, "xdp-mode", "auto", "auto, native, generic or off")
	flags.StringVar(&c.BPFDir, "bpf-dir", "", "folder for the gate's pins in a bpf file system that is there (default: one of its own below --run-dir)")
	flags.StringVar(&c.MetricsSocket, "metrics-socket", "", "unix socket on which /metrics, /healthz and /readyz are served")
	flags.StringVar(&c.MetricsAddress, "metrics-address", "", "host:port on which the same is served")
	flags.BoolVar(&f.clean, "clean", false, "at the end, remove pins and devices too")
	flags.StringVar(&f.nodeAddress, "node-address", "", "cluster: this node's IPv4 address, to which other nodes send packets for its pods")
	flags.Uint16Var(&c.EncapPort, "encap-port", 7947, "cluster: UDP port of packets between nodes, the same on all (used with --node-address)")
	flags.BoolVar(&c.Shortcut, "shortcut", true, "cluster: connections of this node's pods go round its stack once it has let the SYN pass (used with --node-address)")
	flags.StringVar(&c.CRI, "cri", "", "cluster: socket of the container runtime, such as unix:///run/containerd/containerd.sock")
	f.cluster.add(flags)
	cmd.AddCommand(newDaemonClean(g))
	return cmd
}

// run checks the flags, and runs the daemon.
func (f *daemonFlags) run(cmd *cobra.Command, g *globals) (err error) {
	c := &f.config
	switch {
	case f.keyFile == "":
		return usage(cmd, "--key-file is required")
	case (c.Server == "") == (f.cluster.lease == ""):
		return usage(cmd, "one of --server and --lease is required")
	}
	if c.ServiceRanges, err = serviceRanges(f.addresses); err != nil {
		return usage(cmd, "%v", err)
	}
	if f.nodeAddress == "" {
		c.EncapPort, c.Shortcut = 0, false
	} else if c.NodeAddr, err = netip.ParseAddr(f.nodeAddress); err != nil || !c.NodeAddr.Is4() {
		return usage(cmd, "--node-address %q: want this node's IPv4 address", f.nodeAddress)
	}
	if c.MetricsAddress != "" {
		if _, _, err := net.SplitHostPort(c.MetricsAddress); err != nil {
			return usage(cmd, "--metrics-address %q: want host:port", c.MetricsAddress)
		}
	}
	if c.Log, err = g.logger(cmd, os.Stderr); err != nil {
		return err
	}
	if c.Key, err = instance.LoadKey(f.keyFile); err != nil {
		return err
	}
	if c.Node == "" {
		if c.Node, err = os.Hostname(); err != nil {
			return fmt.Errorf("name of this node: %w: give --node", err)
		}
	}
	shortenSlices()
	c.RunDir = g.runDir
	if err := os.MkdirAll(c.RunDir, 0o700); err != nil {
		return fmt.Errorf("make the run folder: %w", err)
	}
	c.Clean = func() bool { return f.clean }
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	if f.cluster.lease != "" {
		wait, err := f.cluster.follow(ctx, cmd, c, f.clean, filepath.Join(c.RunDir, "leader"))
		if err != nil {
			return err
		}
		defer wait()
		defer cancel()
	}
	c.Ready = func() { fmt.Println(instance.DaemonReady) }
	return node.Run(ctx, *c)
}

// serviceRanges reads ranges of addresses: CIDR, or FIRST-LAST, which becomes the fewest prefixes that hold just these.
func serviceRanges(texts []string) (out []netip.Prefix, err error) {
	for _, text := range texts {
		first, last, isRange := strings.Cut(strings.TrimSpace(text), "-")
		if !isRange {
			p, err := netip.ParsePrefix(first)
			if err != nil || !p.Addr().Is4() {
				return nil, fmt.Errorf("service addresses %q: want an IPv4 range, such as %s or 192.0.2.10-192.0.2.20", text, instance.DefaultAddresses)
			}
			out = append(out, p.Masked())
			continue
		}
		a, errA := netip.ParseAddr(strings.TrimSpace(first))
		b, errB := netip.ParseAddr(strings.TrimSpace(last))
		if errors.Join(errA, errB) != nil || !a.Is4() || !b.Is4() || b.Less(a) {
			return nil, fmt.Errorf("service addresses %q: want FIRST-LAST, two IPv4 addresses in order", text)
		}
		// What does not fit is not lost: the gate gives a service outside of its ranges a route of its own.
		if p := prefixes(a, b); len(out)+len(p) <= gate.MaxRanges {
			out = append(out, p...)
		}
	}
	return out, nil
}

// prefixes returns the fewest prefixes that hold just the addresses from a to b.
func prefixes(a, b netip.Addr) (out []netip.Prefix) {
	for {
		bits := 32
		for bits > 0 {
			wider := netip.PrefixFrom(a, bits-1)
			if wider.Masked().Addr() != a || b.Less(lastOf(wider)) {
				break
			}
			bits--
		}
		p := netip.PrefixFrom(a, bits)
		out = append(out, p)
		end := lastOf(p)
		if end == b {
			return out
		}
		a = end.Next()
	}
}

// lastOf is a prefix's last address.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

func newDaemonClean(g *globals) *cobra.Command {
	var bpfDir string
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Remove the gate that a daemon left on this node",
		Long: `Clean removes programs, maps, devices and routes of a daemon that was ended without
--clean, or was killed. It refuses while the daemon runs. Connections through the gate end.`,
		Example: `  wangell daemon clean --bpf-dir=/sys/fs/bpf/wangell --run-dir=/run/wangell`,
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return node.Clean(g.runDir, bpfDir) },
	}
	cmd.Flags().StringVar(&bpfDir, "bpf-dir", "", "as the daemon's")
	return cmd
}
