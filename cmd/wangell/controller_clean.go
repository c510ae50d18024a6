// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/kube/operator"
	"wangell.loutres.me/internal/show/cli"
)

func newControllerClean(g *globals) *cobra.Command {
	var config operator.CleanConfig
	var controllers, kubeconfig string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Prepare a cluster for the removal of Wangell",
		Long: `Clean ends the controllers and undoes what they have done to objects that stay in the
cluster without Wangell:

  - services that are revisions of others lose their finalizer, so that they can be
    deleted without a controller;
  - pods get the requests back that they gave away when they were frozen.

Services keep their pods, and sleeping services cannot wake from then on. 'helm uninstall'
runs it as a hook. It may be run again.`,
		Example: `  wangell controller clean --deployment wangell-system/wangell-controller
  wangell controller clean --kubeconfig ~/.kube/config --deployment wangell-system/wangell-controller
  wangell controller clean --namespace team   # no controller runs any more`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if controllers != "" {
				if config.Controllers, err = parseName("deployment", controllers); err != nil {
					return cli.UsageError{Command: cmd.CommandPath(), Err: err}
				}
			}
			if timeout <= 0 {
				return usage(cmd, "--timeout %s: want more than 0", timeout)
			}
			if config.Rest, err = restConfig(kubeconfig); err != nil {
				return err
			}
			if config.Log, err = g.logger(cmd, os.Stderr); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout,
				errors.New("not within "+timeout.String()+" (--timeout)"))
			defer cancel()
			return operator.Clean(ctx, config)
		},
	}
	f := cmd.Flags()
	f.StringVar(&controllers, "deployment", "",
		"Deployment of the controllers, as NAMESPACE/NAME, which is scaled to 0 first; empty: none run")
	f.StringVar(&config.Namespace, "namespace", "", "clean the services of this namespace only")
	f.StringVar(&kubeconfig, "kubeconfig", "", kubeconfigUsage)
	f.DurationVar(&timeout, "timeout", 2*time.Minute, "time after which to give up")
	return cmd
}
