// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/kube/clusterapi"
	"wangell.loutres.me/internal/kube/forward"
	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/commands"
)

// forwardFlags holds the flags of port-forward.
type forwardFlags struct{ addresses []string }

func newPortForward(c *cluster, place *commands.Place) *cobra.Command {
	f := &forwardFlags{}
	cmd := &cobra.Command{
		Use:   "port-forward SERVICE [LOCAL:]PORT...",
		Short: "Forward ports of this machine to a service, which wakes for it",
		Long: `Listen on ports of this machine until Ctrl-C, and forward each connection to a pod of the service.
A connection wakes the service, which stays awake until the last one has ended; its idle timeout
begins then. A new pod is found when the former one has gone; connections to that one end.

The port of the service stands for its target port; any other is a port of the pod. Without LOCAL
both are the same; with an empty one, as in :80, the local port is any free one.

The connections go through the API server and kubelet, as those of 'kubectl port-forward', which
cannot forward to a service of Wangell: its Service has no selector. You need the rights to patch
wangellservices/scale, to list pods and to create pods/portforward.`,
		GroupID: commands.GroupRun,
		Example: `  kubectl wangell port-forward hello 8080:80
  kubectl wangell port-forward hello :80 -n team
  kubectl wangell port-forward svc/hello 80 9113 --address 127.0.0.1,192.0.2.7`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return errors.New("want a service and its port, such as: port-forward hello 8080:80")
			}
			for _, a := range args[1:] {
				if _, err := forward.ParsePort(a); err != nil {
					return err
				}
			}
			return nil
		},
		ValidArgsFunction: place.CompleteService,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, c, args) },
	}
	cmd.Flags().StringSliceVar(&f.addresses, "address", []string{"127.0.0.1"}, "addresses of this machine to listen on")
	return cmd
}

// serviceKinds are the kinds that may stand before the name of a service, as in commands of kubectl.
var serviceKinds = []string{"svc", "service", "services", "wgs", "wangellservice", "wangellservices"}

// withoutKind returns the name of a service without a kind before it.
func withoutKind(name string) string {
	if kind, bare, ok := strings.Cut(name, "/"); ok && slices.Contains(serviceKinds, kind) {
		return bare
	}
	return name
}

// run forwards until the command's context ends.
func (f *forwardFlags) run(cmd *cobra.Command, c *cluster, args []string) error {
	controller, names, err := c.connect(cmd, withoutKind(args[0]))
	if err != nil {
		return err
	}
	defer controller.Close()
	config, _, err := c.config()
	if err != nil {
		return err
	}
	namespace, name, _ := strings.Cut(names[0], "/")
	if err := clusterapi.HasPods(cmd.Context(), controller, namespace, name); err != nil {
		return err
	}
	service, err := forward.NewService(config, controller, namespace, name)
	if err != nil {
		return err
	}
	listeners, ports, err := f.listen(args[1:])
	if err != nil {
		return err
	}
	for i, l := range listeners {
		fmt.Printf("Forwarding from %s to port %d of %s\n", l.Addr(), ports[i], names[0])
	}
	return forward.New(service, os.Stderr).Run(cmd.Context(), listeners, ports)
}

// listen opens the local ports, and returns the ports of the service to which each leads.
func (f *forwardFlags) listen(args []string) (listeners []net.Listener, ports []uint16, err error) {
	defer func() {
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
		}
	}()
	for _, a := range args {
		p, err := forward.ParsePort(a)
		if err != nil {
			return nil, nil, cli.UsageError{Command: "kubectl wangell port-forward", Err: err}
		}
		local := p.Local
		for _, address := range f.addresses {
			l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(int(local))))
			if err != nil {
				return listeners, nil, fmt.Errorf("%w: choose another port, as in %d:%d", err, p.Remote%50000+10000, p.Remote)
			}
			listeners, ports = append(listeners, l), append(ports, p.Remote)
			local = uint16(l.Addr().(*net.TCPAddr).Port)
		}
	}
	return listeners, ports, nil
}
