// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func newSleep(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sleep NAME",
		Short: "Put a service to sleep now, and wait until it does",
		Long: `Sleep stops the containers of a service without waiting for its idle timeout. Its open
connections end; the next SYN wakes it.`,
		GroupID: groupRun,
		Example: `  sudo wangell sleep hello
  sudo wangell sleep default/hello`,
		Args: cobra.ExactArgs(1),
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
	return cmd
}
