// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/images/peer"
	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/machine/instance"
	"wangell.loutres.me/internal/node"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/wire"
)

// defaultEncapPort is the UDP port of packets between nodes.
const defaultEncapPort = 7947

// daemonFlags holds the flags of the daemon; many of them set fields of config directly.
type daemonFlags struct {
	config      node.Config
	containerd  string
	keyFile     string
	tokenFile   string
	addresses   []string
	nodeAddress string
	announce    string
	replies     string
	clean       bool
	peers       bool
	cluster     clusterFlags
}

// Values of --announce: how hosts outside learn which node takes packets for a service address.
const (
	announceARP  = "ARP"  // one node answers ARP requests for it
	announceNone = "None" // no node does
)

// Values of --replies: the way of replies from a pod on another node than the client's edge node.
const (
	repliesDirect = "Direct" // directly to the client
	repliesEdge   = "Edge"   // back through the client's edge node
)

func newDaemon(g *globals) *cobra.Command {
	f := &daemonFlags{}
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Run the gate of a node (started by up, or on every node of a cluster)",
		Long: `Daemon loads and attaches the gate, parks and releases SYNs, detects when pods
listen, and connects to a controller. When it ends, the gate stays in the kernel and
traffic of warm services continues. The next daemon adopts the gate.

On one machine, 'wangell up' starts the daemon, and restarts it if it ends.

In a cluster, a DaemonSet runs it on every node, in the host's network. It follows the
Lease of the leading controller, watches pods through the node's container runtime,
and exchanges packets with the gates of other nodes over UDP. It needs the
capabilities BPF, PERFMON, NET_ADMIN, NET_RAW and SYS_ADMIN, a bpf file system of the
host, and the network namespaces of pods (/run/netns or hostPID).`,
		GroupID: groupMachine,
		Example: `  sudo wangell daemon --server 127.0.0.1:7465 --key-file /run/wangell/wire.key
  sudo wangell daemon --server 127.0.0.1:7465 --key-file /run/wangell/wire.key --interface eth1 --xdp-mode native
  wangell daemon --node=node-1 --node-address=192.0.2.11 --lease=wangell/wangell-controller \
    --cri=unix:///run/containerd/containerd.sock --token-file=/run/secrets/wangell/token \
    --service-addresses=10.46.100.0/24 --bpf-dir=/sys/fs/bpf/wangell --metrics-address=192.0.2.11:9465`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, g) },
	}
	f.add(cmd.Flags())
	cmd.AddCommand(newDaemonClean(g), newDaemonThaw(g))
	return cmd
}

func (f *daemonFlags) add(flags *pflag.FlagSet) {
	c := &f.config
	addresses := []string{instance.DefaultAddresses.String()}
	flags.StringVar(&c.Server, "server", "", "address of the controller, host:port")
	flags.DurationVar(&c.Keepalive, "keepalive", wire.DefaultKeepalive,
		"one machine: interval of keepalives, the same as the controller's")
	flags.StringVar(&f.keyFile, "key-file", "", "file with the 32 bytes of the wire's master key, where controller and "+
		"daemon trust each\nother (one machine)")
	flags.StringVar(&f.tokenFile, "token-file", "", "cluster: file with a service-account token for the audience "+
		enrolment.Audience+", by which the\nleading controller gives this node its key; instead of --key-file")
	flags.StringVar(&c.Node, "node", "", "name of this node (default: the host name)")
	flags.StringSliceVar(&f.addresses, "service-addresses", addresses,
		"ranges of the service addresses: CIDR or FIRST-LAST, separated by commas")
	flags.StringSliceVar(&f.addresses, "addresses", addresses, "alias of --service-addresses")
	flags.StringArrayVar(&c.Interfaces, "interface", nil,
		"interface towards clients on other machines (repeatable; default: those with a default route)")
	flags.StringVar(&c.XDPMode, "xdp-mode", "auto", "auto (native, or off if the driver refuses), native, generic or off")
	flags.StringVar(&c.BPFDir, "bpf-dir", "",
		"folder for the gate's pins in an existing bpf file system (default: a new one below --run-dir)")
	flags.StringVar(&c.MetricsSocket, "metrics-socket", "", "unix socket that serves /metrics, /healthz and /readyz")
	flags.StringVar(&c.MetricsAddress, "metrics-address", "",
		"TCP address, host:port, that serves /metrics, /healthz and /readyz")
	flags.BoolVar(&f.clean, "clean", false, "remove the gate when the daemon ends")
	flags.StringVar(&f.nodeAddress, "node-address", "",
		"cluster: this node's IPv4 address, to which other nodes send packets for its pods")
	flags.Uint16Var(&c.EncapPort, "encap-port", defaultEncapPort,
		"cluster: UDP port of packets between nodes, the same on all (used with --node-address)")
	flags.BoolVar(&c.Shortcut, "shortcut", true,
		"cluster: connections of this node's pods bypass its network stack after the SYN (used with --node-address)")
	addWakeBudgets(flags, &c.WakeBudgets)
	flags.StringVar(&f.announce, "announce", announceARP,
		"cluster: ARP (each service address is announced by one node) or None (something else, such as the routes\n"+
			"of a cloud or BGP, brings its packets to nodes)")
	flags.StringVar(&f.replies, "replies", repliesDirect,
		"cluster: Direct (replies leave the pod's node, with the service address as their source) or Edge\n"+
			"(they go back through the client's edge node, for networks that check sources)")
	flags.StringVar(&c.CRI, "cri", "",
		"cluster: endpoint of the container runtime, such as unix:///run/containerd/containerd.sock")
	flags.StringVar(&c.PodLogs, "pod-logs", "",
		"cluster: folder of the logs of the node's containers, such as /var/log/pods, with the same path as on the node;\n"+
			"the end of a log is reported when its container ends (default: none is)")
	flags.StringVar(&c.CgroupRoot, "cgroup-root", "",
		"cluster: where the node's cgroups are mounted, in which pods are frozen (default: pods are not frozen)")
	flags.StringVar(&c.LazySocket, "lazy-socket", "",
		"cluster: socket of this node's wangell-snapshotter, which reports files of images that it cannot fetch")
	flags.StringVar(&f.containerd, "containerd", "",
		"one machine: socket of the containerd that runs the pods, for readinessProbes that run commands")
	flags.StringVar(&c.EnvoySocket, "envoy-socket", "",
		"unix socket at which this node's Envoy gets its configuration, for services with balancing.level: Request")
	flags.IntVar(&c.EnvoyUser, "envoy-user", 0, "user ID that Envoy runs as, which owns the socket")
	addPeers(flags, &f.peers, &c.Peers)
	addSizes(flags, &c.Sizes)
	f.cluster.add(flags)
}

// run checks the flags and runs the daemon until the command's context ends.
func (f *daemonFlags) run(cmd *cobra.Command, g *globals) (err error) {
	c := &f.config
	switch {
	case (f.keyFile == "") == (f.tokenFile == ""):
		return usage(cmd, "one of --key-file and --token-file is required")
	case f.tokenFile != "" && f.cluster.lease == "":
		return usage(cmd, "--token-file needs --lease")
	case (c.Server == "") == (f.cluster.lease == ""):
		return usage(cmd, "one of --server and --lease is required")
	}
	if c.ServiceRanges, err = serviceRanges(f.addresses); err != nil {
		return usage(cmd, "%v", err)
	}
	if err := c.Sizes.Check(); err != nil {
		return usage(cmd, "%v", err)
	}
	if f.nodeAddress == "" {
		c.EncapPort, c.Shortcut = 0, false
	} else if c.NodeAddr, err = netip.ParseAddr(f.nodeAddress); err != nil || !c.NodeAddr.Is4() {
		return usage(cmd, "--node-address %q: want this node's IPv4 address", f.nodeAddress)
	}
	switch f.announce {
	case announceARP, announceNone:
		c.NoARP = f.announce == announceNone
	default:
		return usage(cmd, "--announce %q: want %s or %s", f.announce, announceARP, announceNone)
	}
	switch f.replies {
	case repliesDirect, repliesEdge:
		c.RepliesByEdge = f.replies == repliesEdge
	default:
		return usage(cmd, "--replies %q: want %s or %s", f.replies, repliesDirect, repliesEdge)
	}
	switch {
	case !f.peers:
		c.Peers.Port = 0
	case f.nodeAddress == "" || c.CRI == "":
		return usage(cmd, "--peers needs --node-address and --cri")
	}
	if err := peer.CheckCaches(c.Peers.Caches); err != nil {
		return usage(cmd, "--peers-cache: %v", err)
	}
	if c.MetricsAddress != "" {
		if _, _, err := net.SplitHostPort(c.MetricsAddress); err != nil {
			return usage(cmd, "--metrics-address %q: want host:port", c.MetricsAddress)
		}
	}
	if c.Log, err = g.logger(cmd, os.Stderr); err != nil {
		return err
	}
	if c.Node == "" {
		if c.Node, err = os.Hostname(); err != nil {
			return fmt.Errorf("name of this node: %w: set --node", err)
		}
	}
	if f.keyFile != "" {
		master, err := instance.LoadKey(f.keyFile)
		if err != nil {
			return err
		}
		c.Keys = enrolment.KeysOf(master, c.Node)
	}
	shortenSlices()
	c.RunDir = g.runDir
	if err := os.MkdirAll(c.RunDir, 0o700); err != nil {
		return fmt.Errorf("creating the run folder: %w", err)
	}
	c.Clean = func() bool { return f.clean }
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	if f.cluster.lease != "" {
		wait, err := f.cluster.follow(ctx, cmd, c, f.clean, f.tokenFile, filepath.Join(c.RunDir, "leader"))
		if err != nil {
			return err
		}
		defer wait()
		defer cancel()
	}
	if f.containerd != "" {
		executor, err := containerd.NewExecutor(f.containerd, containerd.DefaultNamespace, containerd.PipesDir(c.RunDir))
		if err != nil {
			return err
		}
		defer executor.Close()
		c.Exec = executor.Exec
	}
	c.Ready = func() {
		fmt.Println(instance.DaemonReady)
		trimResident(c.Log)
	}
	return node.Run(ctx, *c)
}

func newDaemonClean(g *globals) *cobra.Command {
	var bpfDir, cgroupRoot string
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Remove the gate that an ended daemon left on this node",
		Long: `Clean removes the programs, maps, devices and routes of a daemon that ended without
--clean, and lets the pods run that it has frozen. It fails while a daemon runs. Connections
through the gate end.`,
		Example: `  wangell daemon clean --bpf-dir=/sys/fs/bpf/wangell --run-dir=/run/wangell`,
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return node.Clean(g.runDir, bpfDir, cgroupRoot) },
	}
	cmd.Flags().StringVar(&bpfDir, "bpf-dir", "", "the --bpf-dir of the daemon")
	cmd.Flags().StringVar(&cgroupRoot, "cgroup-root", "", "the --cgroup-root of the daemon")
	return cmd
}

// trimResident gives up memory that only the start of the program needed.
func trimResident(log *slog.Logger) {
	if err := process.TrimResident(); err != nil {
		log.Warn("memory that only the start needed is kept", "error", err)
	}
}
