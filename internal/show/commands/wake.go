// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/show/httpapi"
)

func (p *Place) newWake() *cobra.Command {
	return &cobra.Command{
		Use:   "wake NAME",
		Short: "Wake a service now",
		Long: `Start a container of a service without waiting for a client, and return once it serves.
The service sleeps again after its idle timeout. One that failed is tried at once.`,
		GroupID: GroupRun,
		Example: `  sudo wangell wake hello
  sudo wangell wake default/hello`,
		Args:              ServiceArg,
		ValidArgsFunction: p.CompleteService,
		RunE:              p.timed("serves", (*httpapi.Client).Wake),
	}
}

func (p *Place) newSleep() *cobra.Command {
	return &cobra.Command{
		Use:   "sleep NAME",
		Short: "Put a service to sleep now",
		Long: `Stop the containers of a service without waiting for its idle timeout, and return once
they have ended. Open connections end. The next SYN wakes the service.`,
		GroupID: GroupRun,
		Example: `  sudo wangell sleep hello
  sudo wangell sleep default/hello`,
		Args:              ServiceArg,
		ValidArgsFunction: p.CompleteService,
		RunE:              p.timed("sleeps", (*httpapi.Client).Sleep),
	}
}

// timed returns the RunE of a command that acts on one service, and says how long that took.
func (p *Place) timed(state string, act func(*httpapi.Client, context.Context, string) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, name, err := p.one(cmd, args[0])
		if err != nil {
			return err
		}
		defer c.Close()
		begin := time.Now()
		if err := act(c, cmd.Context(), name); err != nil {
			return err
		}
		fmt.Printf("%s %s (%.0f ms)\n", name, state, float64(time.Since(begin).Microseconds())/1000)
		return nil
	}
}
