// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

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
		RunE: func(cmd *cobra.Command, args []string) error {
			c, name, err := p.one(cmd, args[0])
			if err != nil {
				return err
			}
			defer c.Close()
			begin := time.Now()
			if err := c.Sleep(cmd.Context(), name); err != nil {
				return err
			}
			fmt.Printf("%s sleeps (%.0f ms)\n", name, float64(time.Since(begin).Microseconds())/1000)
			return nil
		},
	}
}
