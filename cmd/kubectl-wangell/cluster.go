// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/buildinfo"
	"wangell.loutres.me/internal/kube/clusterapi"
	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/httpapi"
)

const (
	// controllerVariable is the environment variable with the default of --controller.
	controllerVariable = "WANGELL_CONTROLLER"
	defaultController  = "wangell-system/wangell"

	groupCluster = "cluster"
)

// cluster is the location of the services, from the flags of kubectl.
type cluster struct {
	rules      *clientcmd.ClientConfigLoadingRules
	overrides  clientcmd.ConfigOverrides
	all        bool
	controller string
}

func newCluster() *cluster {
	return &cluster{rules: clientcmd.NewDefaultClientConfigLoadingRules()}
}

// register adds the flags of kubectl, and --controller.
func (c *cluster) register(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&c.rules.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "path of the kubeconfig file")
	clientcmd.BindOverrideFlags(&c.overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
	byDefault := defaultController
	if v := os.Getenv(controllerVariable); v != "" {
		byDefault = v
	}
	flags.StringVar(&c.controller, "controller", byDefault,
		"namespace and full name of the chart's release, as NAMESPACE/NAME (or $"+controllerVariable+")")
	complete := func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return c.contexts(), cobra.ShellCompDirectiveNoFileComp
	}
	if err := root.RegisterFlagCompletionFunc(clientcmd.FlagContext, complete); err != nil {
		panic(err) // there is no such flag
	}
}

// contexts returns the names of all contexts.
func (c *cluster) contexts() (names []string) {
	config, err := c.rules.Load()
	if err != nil {
		return nil
	}
	for name := range config.Contexts {
		names = append(names, name)
	}
	return names
}

// config returns the configuration to reach the API server, and the namespace.
func (c *cluster) config() (*rest.Config, string, error) {
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.rules, &c.overrides)
	r, err := config.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("configuration to reach the API server: %w: give --kubeconfig or --context", err)
	}
	r.UserAgent = "kubectl-wangell/" + buildinfo.Version
	namespace, _, err := config.Namespace()
	return r, namespace, err
}

// names returns which controllers are meant.
func (c *cluster) names() (clusterapi.Controller, error) {
	namespace, name, ok := strings.Cut(c.controller, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return clusterapi.Controller{}, cli.UsageError{
			Command: "kubectl wangell", Err: fmt.Errorf("--controller %q: want NAMESPACE/NAME", c.controller),
		}
	}
	return clusterapi.Controller{Namespace: namespace, Name: name}, nil
}

// connect is commands.Place's Connect.
func (c *cluster) connect(_ *cobra.Command, names ...string) (*httpapi.Client, []string, error) {
	of, err := c.names()
	if err != nil {
		return nil, nil, err
	}
	r, namespace, err := c.config()
	if err != nil {
		return nil, nil, err
	}
	full, scope := qualify(names, namespace, c.all)
	client, err := clusterapi.NewClient(r, of, scope)
	return client, full, err
}

// move is commands.Place's Move: it writes to the API server.
func (c *cluster) move(cmd *cobra.Command, _ *httpapi.Client, name string,
	change func([]v1alpha1.Revision) ([]v1alpha1.Revision, error)) (from, to []v1alpha1.Revision, err error) {
	r, _, err := c.config()
	if err != nil {
		return nil, nil, err
	}
	namespace, bare, _ := strings.Cut(name, "/")
	return clusterapi.MoveTraffic(cmd.Context(), r, namespace, bare, change)
}

// qualify returns the full names of services, and the namespace of all of them; empty if there are several.
func qualify(names []string, namespace string, all bool) (full []string, scope string) {
	scope = namespace
	for _, n := range names {
		if !strings.Contains(n, "/") {
			n = namespace + "/" + n
		}
		if of, _, _ := strings.Cut(n, "/"); len(full) == 0 {
			scope = of
		} else if scope != of {
			scope = ""
		}
		full = append(full, n)
	}
	if all {
		scope = ""
	}
	return full, scope
}
