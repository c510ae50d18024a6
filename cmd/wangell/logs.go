// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
)

func newLogs(g *globals) *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use:     "logs NAME",
		Short:   "Print what a service's containers wrote, also those that are gone",
		GroupID: groupLook,
		Example: `  sudo wangell logs hello
  sudo wangell logs default/hello --tail 20 -f`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := g.client()
			defer c.Close()
			err := c.Logs(cmd.Context(), args[0], os.Stdout, tail, follow)
			if follow && errors.Is(err, cmd.Context().Err()) {
				return nil // Ctrl-C is how following ends
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes, until Ctrl-C")
	cmd.Flags().IntVar(&tail, "tail", -1, "only the last lines; -1 is all")
	return cmd
}
