// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"wangell.loutres.me/internal/commands"
)

func newWake(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "wake NAME",
		Short: "Wake a service now",
		Long: `Start a container of a service without waiting for a client, and return once it serves.
The service sleeps again after its idle timeout. One that failed is tried at once.`,
		GroupID: groupRun,
		Example: `  sudo wangell wake hello
  sudo wangell wake default/hello`,
		Args:              commands.ServiceArg,
		ValidArgsFunction: g.place().CompleteService,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := g.client()
			defer c.Close()
			begin := time.Now()
			if err := c.Wake(cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Printf("%s serves (%.0f ms)\n", args[0], float64(time.Since(begin).Microseconds())/1000)
			return nil
		},
	}
}

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
				fmt.Printf("%s sleeps: there is nothing to restart\n", args[0])
			default:
				fmt.Printf("%s serves from new containers (%d replaced, %.0f ms)\n", args[0], n,
					float64(time.Since(begin).Microseconds())/1000)
			}
			return nil
		},
	}
}
