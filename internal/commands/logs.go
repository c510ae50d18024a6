// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
)

func (p *Place) newLogs() *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print the output of a service's containers",
		Long: `Print what the containers of a service wrote to standard output and standard error,
including containers that have ended.`,
		GroupID: GroupLook,
		Example: `  sudo wangell logs hello
  sudo wangell logs default/hello --tail 20 -f`,
		Args:              ServiceArg,
		ValidArgsFunction: p.CompleteService,
		RunE: func(cmd *cobra.Command, args []string) error {
			if tail < -1 {
				return usage(cmd, "--tail %d: want a number of lines, or -1 for all", tail)
			}
			c, name, err := p.one(cmd, args[0])
			if err != nil {
				return err
			}
			defer c.Close()
			err = c.Logs(cmd.Context(), name, os.Stdout, tail, follow)
			if follow && errors.Is(err, cmd.Context().Err()) {
				return nil // Ctrl-C is the way to end it
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new output until Ctrl-C")
	cmd.Flags().IntVar(&tail, "tail", -1, "number of lines from the end; -1 prints all")
	return cmd
}
