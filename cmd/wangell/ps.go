// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/view"
)

func newPs(g *globals) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the services of a running 'wangell up'",
		Long: `List the services of a running 'wangell up': address, state, pods, open connections
and the last wake.`,
		GroupID: groupLook,
		Example: `  sudo wangell ps
  sudo wangell ps -o json | jq -r '.[].service.status.loadBalancerIP'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := g.client()
			defer c.Close()
			services, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			if out == outputJSON {
				return printJSON(services)
			}
			wakes, err := c.Wakes(cmd.Context(), "")
			if err != nil {
				return err
			}
			return view.Services(os.Stdout, services, wakes, time.Now())
		},
	}
	out.registerTo(cmd)
	return cmd
}
