// SPDX-License-Identifier: Apache-2.0

// Program flanneld is flannel for a node of the test cluster: its packages, with the vxlan and host-gw backends alone.
// The whole program would pull in the client library of a cloud.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/hostgw"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
	"golang.org/x/sys/unix"
)

// resync is how often the rules of iptables are looked after, in seconds.
const resync = 60

func main() {
	kubeconfig := flag.String("kubeconfig", "", "a kubeconfig that may patch nodes")
	config := flag.String("net-conf", "", "network configuration, JSON")
	iface := flag.String("iface", "eth0", "the device that leads to the other nodes")
	node := flag.String("node", "", "this node's name")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig, *config, *iface, *node); err != nil {
		fmt.Fprintln(os.Stderr, "flanneld:", err)
		os.Exit(1)
	}
}

// run makes the node's part of the network and keeps it in line with the other nodes until the context ends.
func run(ctx context.Context, kubeconfig, netConf, iface, node string) error {
	if err := os.Setenv("NODE_NAME", node); err != nil {
		return err
	}
	leases, err := kube.NewSubnetManager(ctx, "", kubeconfig, "flannel.alpha.coreos.com", netConf, false)
	if err != nil {
		return fmt.Errorf("leases in the API: %w", err)
	}
	config, err := leases.GetNetworkConfig(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", netConf, err)
	}
	stack, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return fmt.Errorf("%s: %w", netConf, err)
	}
	external, err := ipmatch.LookupExtIface(iface, "", "", stack, ipmatch.PublicIPOpts{})
	if err != nil {
		return fmt.Errorf("device %s: %w", iface, err)
	}
	b, err := backend.NewManager(ctx, leases, external).GetBackend(config.BackendType)
	if err != nil {
		return fmt.Errorf("backend %s: %w", config.BackendType, err)
	}
	var running sync.WaitGroup
	network, err := b.RegisterNetwork(ctx, &running, config)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	rules := &iptables.IPTablesManager{}
	if err := rules.Init(ctx); err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	var none ip.IP4Net
	var none6 ip.IP6Net
	err = rules.SetupAndEnsureMasqRules(ctx, config.Network, none, none, none6, none6, none6, network.Lease(), resync, false)
	if err != nil {
		return fmt.Errorf("masquerade rules: %w", err)
	}
	rules.SetupAndEnsureForwardRules(ctx, config.Network, none6, resync)
	network.Run(ctx)
	running.Wait()
	if ctx.Err() == nil {
		return errors.New("the network ended by itself")
	}
	return nil
}
