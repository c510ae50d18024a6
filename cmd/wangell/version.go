// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/base/buildinfo"
	"wangell.loutres.me/internal/show/cli"
)

func newVersion() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of the program",
		GroupID: groupMachine,
		Example: `  wangell version
  wangell version -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := buildinfo.Get()
			if out == cli.OutputJSON {
				return cli.PrintJSON(info)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "wangell %s %s %s/%s\n", info.Version, info.Go, info.OS, info.Arch)
			return err
		},
	}
	out.RegisterTo(cmd)
	return cmd
}
