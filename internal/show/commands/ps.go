// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/view"
)

func (p *Place) newPs() *cobra.Command {
	var out cli.Output
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the services of a running 'wangell up'",
		Long: `List the services of a running 'wangell up': address, state, pods, open connections
and the last wake, and requests per second if a service balances them. A manifest with a
mistake has a line of its own. Services of an invalid manifest keep their last valid state.
With -o json its mistakes are on standard error. A budget of wakes that clients exceed
shows as the MESSAGE of its service; a table of the gate that is almost full has a line
below the services.`,
		GroupID: GroupLook,
		Example: `  sudo wangell ps
  sudo wangell ps -o json | jq -r '.[].service.status.loadBalancerIP'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := p.Connect(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			services, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			broken, err := c.Broken(cmd.Context())
			if err != nil {
				return err
			}
			if out == cli.OutputJSON {
				for _, b := range broken {
					fmt.Fprintln(os.Stderr, strings.Join(b.Errors, "\n"))
				}
				return cli.PrintJSON(services)
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
	out.RegisterTo(cmd)
	p.several(cmd)
	return cmd
}
