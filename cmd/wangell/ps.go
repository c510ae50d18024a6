// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/instance"
	"wangell.loutres.me/internal/localapi"
	"wangell.loutres.me/internal/view"
)

// client talks to the instance of the run folder.
func (g *globals) client() *localapi.Client {
	return localapi.NewClient(instance.ControlSocket(g.runDir))
}

func newPs(g *globals) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:     "ps",
		Short:   "List the services of a running up",
		GroupID: groupLook,
		Example: `  sudo wangell ps
  sudo wangell ps -o json | jq -r '.[].service.status.loadBalancerIP'`,
		Args: cobra.NoArgs,
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
	out.register(cmd.Flags())
	return cmd
}
