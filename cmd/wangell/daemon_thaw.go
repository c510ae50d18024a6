// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/node"
)

func newDaemonThaw(g *globals) *cobra.Command {
	var t node.Thawer
	cmd := &cobra.Command{
		Use:   "thaw",
		Short: "Let the pods run that a daemon has frozen, while it is away",
		Long: `Thaw watches the daemon of this node, by its lock, until it is ended itself. When the
daemon was killed and no other one has started for two seconds, it lets the pods run
that the daemon has frozen, because nothing else would do so when a client comes.

In a cluster, it runs beside the daemon, in a container of its own. On one machine,
'wangell up' does the same.`,
		Example: `  wangell daemon thaw --run-dir=/run/wangell --cgroup-root=/run/host/cgroup`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if t.Log, err = g.logger(cmd, cmd.ErrOrStderr()); err != nil {
				return err
			}
			t.RunDir = g.runDir
			trimResident(t.Log)
			t.Run(cmd.Context())
			return nil
		},
	}
	cmd.Flags().StringVar(&t.CgroupRoot, "cgroup-root", "", "the --cgroup-root of the daemon")
	return cmd
}
