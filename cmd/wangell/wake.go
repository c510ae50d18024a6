// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/show/commands"
	"wangell.loutres.me/internal/show/httpapi"
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
		RunE: g.timed(func(ctx context.Context, c *httpapi.Client, name string) (string, error) {
			return "serves (%s)", c.Wake(ctx, name)
		}),
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
		RunE: g.timed(func(ctx context.Context, c *httpapi.Client, name string) (string, error) {
			n, err := c.Restart(ctx, name)
			if n == 0 {
				return "sleeps: there is nothing to restart", err
			}
			return fmt.Sprintf("serves from new containers (%d replaced, %%s)", n), err
		}),
	}
}

// timed returns the RunE of a command that acts on one service. act returns the new state as text, with %s for the
// duration.
func (g *globals) timed(
	act func(ctx context.Context, c *httpapi.Client, name string) (done string, err error),
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c := g.client()
		defer c.Close()
		begin := time.Now()
		done, err := act(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		took := fmt.Sprintf("%.0f ms", float64(time.Since(begin).Microseconds())/1000)
		fmt.Println(args[0], strings.ReplaceAll(done, "%s", took))
		return nil
	}
}
