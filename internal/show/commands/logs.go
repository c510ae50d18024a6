// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/runtime"
)

func (p *Place) newLogs() *cobra.Command {
	var options runtime.LogOptions
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print the output of a service's containers",
		Long: `Print what the main container of a service wrote to standard output and standard error,
including containers that have ended. -c names another container of its pods.`,
		GroupID: GroupLook,
		Example: `  sudo wangell logs hello
  sudo wangell logs default/hello --tail 20 -f
  sudo wangell logs shop -c migrate`,
		Args:              ServiceArg,
		ValidArgsFunction: p.CompleteService,
		RunE: func(cmd *cobra.Command, args []string) error {
			if options.Tail < -1 {
				return usage(cmd, "--tail %d: want a number of lines, or -1 for all", options.Tail)
			}
			c, name, err := p.one(cmd, args[0])
			if err != nil {
				return err
			}
			defer c.Close()
			err = c.Logs(cmd.Context(), name, os.Stdout, options)
			if options.Follow && errors.Is(err, cmd.Context().Err()) {
				return nil // Ctrl-C is the way to end it
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&options.Follow, "follow", "f", false, "continue with new output until Ctrl-C")
	cmd.Flags().IntVar(&options.Tail, "tail", -1, "number of lines from the end; -1 prints all")
	p.ContainerFlag(cmd, &options.Container, "whose output to print")
	return cmd
}
