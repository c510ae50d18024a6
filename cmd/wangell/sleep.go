// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func newSleep(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "sleep NAME",
		Short: "Put a service to sleep now",
		Long: `Stop the containers of a service without waiting for its idle timeout, and return once
they have ended. Open connections end. The next SYN wakes the service.`,
		GroupID: groupRun,
		Example: `  sudo wangell sleep hello
  sudo wangell sleep default/hello`,
		Args:              serviceArg,
		ValidArgsFunction: g.completeService,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := g.client()
			defer c.Close()
			begin := time.Now()
			if err := c.Sleep(cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Printf("%s sleeps (%.0f ms)\n", args[0], float64(time.Since(begin).Microseconds())/1000)
			return nil
		},
	}
}
