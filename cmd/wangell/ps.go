// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
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
and the last wake. A manifest with a mistake has a line of its own. Services of an
invalid manifest keep their last valid state. With -o json its mistakes are on standard
error. A budget of wakes that clients exceed shows as the MESSAGE of its service; a table
of the gate that is almost full has a line below the services.`,
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
			broken, err := c.Broken(cmd.Context())
			if err != nil {
				return err
			}
			if out == outputJSON {
				for _, b := range broken {
					fmt.Fprintln(os.Stderr, strings.Join(b.Errors, "\n"))
				}
				return printJSON(services)
			}
			pressure, err := c.Pressure(cmd.Context())
			if err != nil {
				return err
			}
			wakes, err := c.Wakes(cmd.Context(), "")
			if err != nil {
				return err
			}
			return view.Services(os.Stdout, services, broken, pressure, wakes, time.Now())
		},
	}
	out.registerTo(cmd)
	return cmd
}
