// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/instance"
)

func newDown(g *globals) *cobra.Command {
	p := &places{g: g}
	var patience time.Duration
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End a running up and remove all that an instance made",
		Long: `Down asks a running 'wangell up' to end, as Ctrl-C does. What an up that was killed
left - containers, devices, mounts, processes - it removes itself. Images, logs and
the services' addresses stay in the state folder.`,
		GroupID: groupRun,
		Example: `  sudo wangell down
  sudo wangell down --run-dir /run/other --timeout 10s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := g.logger(cmd, os.Stderr)
			if err != nil {
				return err
			}
			return instance.Down(cmd.Context(), p.config(), patience, log)
		},
	}
	p.register(cmd.Flags())
	cmd.Flags().DurationVar(&patience, "timeout", time.Minute, "how long a running up has to end before it is killed")
	return cmd
}
