// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/show/commands"
)

func newRestart(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "restart NAME",
		Short: "Replace the containers of a service",
		Long: `Replace the containers of a service, one at a time, and return once the new ones serve.
Each new container serves before an old one gets no more connections; the old one ends
with its connections, at the latest after drainTimeout. If a new one fails, the old ones
stay. With updateStrategy Recreate, the default for services that write volumes, the old
container ends first, and clients wait meanwhile. A service that sleeps stays asleep: its
next container is a new one anyway.`,
		GroupID: groupRun,
		Example: `  sudo wangell restart hello
  sudo wangell restart default/hello`,
		Args:              commands.ServiceArg,
		ValidArgsFunction: g.place().CompleteService,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := g.client()
			defer c.Close()
			begin := time.Now()
			n, err := c.Restart(cmd.Context(), args[0])
			switch {
			case err != nil:
				return err
			case n == 0:
				fmt.Println(args[0], "sleeps: there is nothing to restart")
			default:
				took := float64(time.Since(begin).Microseconds()) / 1000
				fmt.Printf("%s serves from new containers (%d replaced, %.0f ms)\n", args[0], n, took)
			}
			return nil
		},
	}
}
