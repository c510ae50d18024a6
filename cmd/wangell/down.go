// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/machine/instance"
)

func newDown(g *globals) *cobra.Command {
	p := &places{g: g}
	var patience time.Duration
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop a running 'wangell up' and clean up after it",
		Long: `Stop a running 'wangell up', as Ctrl-C does, and remove what a killed one
left behind: containers, devices, mounts and processes. Images, logs and the services'
addresses stay in the state folder.`,
		GroupID: groupRun,
		Example: `  sudo wangell down
  sudo wangell down --run-dir /run/other --timeout 10s`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := g.logger(cmd, os.Stderr)
			if err != nil {
				return err
			}
			return instance.Down(cmd.Context(), p.config(), patience, log)
		},
	}
	p.register(cmd)
	cmd.Flags().DurationVar(&patience, "timeout", time.Minute, "time that a running 'wangell up' has before it is killed")
	return cmd
}
