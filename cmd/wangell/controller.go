// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/kube/operator"
	"wangell.loutres.me/internal/machine/instance"
	"wangell.loutres.me/internal/show/cli"
)

const kubeconfigUsage = "kubeconfig file to reach the API server (default: the pod's, $KUBECONFIG or ~/.kube/config)"

// controllerFlags are the flags of the controller command.
type controllerFlags struct {
	config                                operator.Config
	addresses                             []string
	addressesFrom, lease, key, kubeconfig string
	account, deployment, releasedIn       string
	nodePolicy, fronts                    string
}

func newController(g *globals) *cobra.Command {
	c := &controllerFlags{}
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Manage the WangellServices of a Kubernetes cluster",
		Long: `Controller gives each WangellService of a cluster a Deployment, a Service and an
address, wakes it when a daemon asks for it, and reports its state in its status.
It runs in a Deployment with two replicas or more. The one that holds the
Lease leads: daemons read its address there.

It ends when it loses the Lease, and is then restarted. Pods and traffic go on
without it; only a sleeping service has to wait.`,
		GroupID: groupMachine,
		Example: `  wangell controller --service-addresses 10.46.100.0/24 --key-file /etc/wangell/key/wire.key
  wangell controller --service-addresses 192.0.2.10-192.0.2.20,198.51.100.0/28 --key-file wire.key
  wangell controller --addresses-configmap wangell-system/pools --namespace team --key-file wire.key
  wangell controller --kubeconfig ~/.kube/config --identity laptop/192.0.2.7:7946 --key-file wire.key`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd, g) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&c.addresses, "service-addresses", nil,
		"pools of service addresses: ranges such as 10.46.100.0/24 or 10.46.100.10-10.46.100.20")
	f.StringVar(&c.addressesFrom, "addresses-configmap", "",
		"ConfigMap with more pools under the key addresses, as NAMESPACE/NAME; changes apply at once")
	f.StringVar(&c.releasedIn, "released-configmap", "",
		"existing ConfigMap, as NAMESPACE/NAME, that keeps the addresses of deleted services for the next leader")
	f.StringVar(&c.nodePolicy, "node-policy", "",
		"existing NetworkPolicy, as NAMESPACE/NAME, whose rules let nodes alone reach the ports for daemons: they are kept")
	f.StringVar(&c.key, "key-file", "", "file with the 32 bytes of the wire's master key (required)")
	f.StringVar(&c.config.WireAddress, "wire-address", ":7946", "UDP address for daemons")
	f.StringVar(&c.account, "daemon-account", "", "service account of the daemons, as NAMESPACE/NAME: "+
		"they get the keys of their nodes at the TCP port of --wire-address")
	f.StringVar(&c.lease, "lease", "wangell-system/wangell-controller", "Lease that the leader holds, as NAMESPACE/NAME")
	f.StringVar(&c.config.Identity, "identity", "", "holder of the Lease, as NAME/IP:PORT, the address to which "+
		"daemons connect (default: from $POD_NAME, $POD_IP and --wire-address)")
	f.DurationVar(&c.config.LeaseDuration, "lease-duration", 2*time.Second,
		"time without a renewal of the Lease after which another controller leads")
	f.DurationVar(&c.config.RenewDeadline, "renew-deadline", 1500*time.Millisecond,
		"time after which a leader that cannot renew the Lease ends")
	f.DurationVar(&c.config.RetryPeriod, "retry-period", 300*time.Millisecond,
		"time between two renewals of the Lease, or two tries to get it")
	f.DurationVar(&c.config.HandOver, "hand-over", 15*time.Second,
		"how long a former leader keeps reporting pod changes to daemons, until the next leader does")
	f.StringVar(&c.deployment, "deployment", "", "Deployment of the controllers, as NAMESPACE/NAME: once it has no "+
		"replicas, a former leader ends without waiting for the next one; empty: it always waits")
	f.IntVar(&c.config.MaxServices, "services", int(gate.DefaultSizes().Services),
		"services that the daemons' gates have room for, as their --services")
	f.StringVar(&c.config.Namespace, "namespace", "", "manage the services of this namespace only")
	f.BoolVar(&c.config.StartThroughDeployment, "start-through-deployment", false,
		"have the Deployment create the pods of a wake: slower, with fewer requests to the API server")
	f.BoolVar(&c.config.LogsInMessages, "logs-in-messages", false,
		"show the end of a crashed program's log in the status of its service and in Events,\n"+
			"also to people who may not read logs")
	f.BoolVar(&c.config.NodePorts, "node-ports", false,
		"also give services a port of every node, for clients outside that have no route to service addresses")
	f.BoolVar(&c.config.Lazy, "lazy", false, "the RuntimeClass "+v1alpha1.LazyRuntime+
		" exists, by which pods of services with imagePull.mode Lazy start before their image is complete")
	f.BoolVar(&c.config.Requests, "requests", false,
		"the nodes run Envoy: accept services with balancing.level: Request")
	f.StringVar(&c.fronts, "envoy-service", "", "headless Service of the nodes' Envoys, as NAMESPACE/NAME: "+
		"conditions of services then name nodes without one")
	f.StringVar(&c.config.MetricsAddress, "metrics-address", ":9464", "TCP address of the Prometheus metrics; empty: none")
	f.StringVar(&c.config.APIAddress, "api-address", "",
		"TCP address for users (kubectl wangell), with their own rights, the same port on all controllers; empty: none")
	f.StringVar(&c.config.HealthAddress, "health-address", ":8081", "TCP address of /healthz and /readyz; empty: none")
	f.StringVar(&c.kubeconfig, "kubeconfig", "", kubeconfigUsage)
	return cmd
}

func (c *controllerFlags) run(cmd *cobra.Command, g *globals) error {
	var err error
	if c.key == "" {
		return usage(cmd, "--key-file is required")
	}
	if c.config.Pools, err = operator.ParsePools(c.addresses); err != nil {
		return usage(cmd, "--service-addresses: %w", err)
	}
	if c.config.Lease, err = parseName("lease", c.lease); err != nil {
		return cli.UsageError{Command: cmd.CommandPath(), Err: err}
	}
	for _, n := range []struct {
		flag, value string
		to          *operator.Name
	}{
		{"addresses-configmap", c.addressesFrom, &c.config.PoolsFrom},
		{"released-configmap", c.releasedIn, &c.config.ReleasedIn},
		{"node-policy", c.nodePolicy, &c.config.NodePolicy},
		{"envoy-service", c.fronts, &c.config.Fronts},
		{"deployment", c.deployment, &c.config.Deployment},
		{"daemon-account", c.account, &c.config.DaemonAccount},
	} {
		if n.value == "" {
			continue
		}
		if *n.to, err = parseName(n.flag, n.value); err != nil {
			return cli.UsageError{Command: cmd.CommandPath(), Err: err}
		}
	}
	if c.config.Identity == "" {
		c.config.Identity, err = podIdentity(c.config.WireAddress)
	} else {
		err = checkIdentity(c.config.Identity)
	}
	if err != nil {
		return cli.UsageError{Command: cmd.CommandPath(), Err: err}
	}
	lease, renew, retry := c.config.LeaseDuration, c.config.RenewDeadline, c.config.RetryPeriod
	if lease <= renew || renew <= retry*6/5 || retry <= 0 {
		return usage(cmd, "--lease-duration %s, --renew-deadline %s, --retry-period %s: "+
			"the first must be longer than the second, and that 1.2 times longer than the third", lease, renew, retry)
	}
	if c.config.HandOver < 0 {
		return usage(cmd, "--hand-over %s: want 0 or more", c.config.HandOver)
	}
	if c.config.MaxServices < 1 {
		return usage(cmd, "--services %d: want 1 or more", c.config.MaxServices)
	}
	if c.config.Key, err = instance.LoadKey(c.key); err != nil {
		return err
	}
	if c.config.Log, err = g.logger(cmd, os.Stderr); err != nil {
		return err
	}
	if c.config.Rest, err = restConfig(c.kubeconfig); err != nil {
		return err
	}
	shortenSlices()
	return operator.Run(cmd.Context(), c.config)
}

// restConfig returns the configuration to reach the API server: from the file, if one is given, else from $KUBECONFIG,
// ~/.kube/config, or the pod's service account.
func restConfig(file string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("configuration to reach the API server: %w: give --kubeconfig", err)
	}
	return config, nil
}

// parseName parses "NAMESPACE/NAME".
func parseName(flag, text string) (operator.Name, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return operator.Name{}, fmt.Errorf("--%s %q: want NAMESPACE/NAME", flag, text)
	}
	return operator.Name{Namespace: namespace, Name: name}, nil
}

// podIdentity returns the identity of a pod, from its environment.
func podIdentity(wireAddress string) (string, error) {
	_, port, err := net.SplitHostPort(wireAddress)
	if err != nil {
		return "", fmt.Errorf("--wire-address %q: %w: write :7946, for example", wireAddress, err)
	}
	name, ip := os.Getenv("POD_NAME"), os.Getenv("POD_IP")
	if name == "" || ip == "" {
		return "", errors.New("$POD_NAME and $POD_IP are not set: " +
			"give --identity NAME/IP:PORT, with the address where daemons reach this process")
	}
	identity := name + "/" + net.JoinHostPort(ip, port)
	return identity, checkIdentity(identity)
}

// checkIdentity returns an error for an identity that daemons could not parse.
func checkIdentity(identity string) error {
	name, addr, ok := strings.Cut(identity, "/")
	a, err := netip.ParseAddrPort(addr)
	if !ok || name == "" || err != nil || !a.Addr().IsValid() || a.Addr().IsUnspecified() || a.Port() == 0 {
		return fmt.Errorf("identity %q: want NAME/IP:PORT, with the address where daemons reach this process", identity)
	}
	return nil
}
