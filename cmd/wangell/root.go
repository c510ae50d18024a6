// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/show/cli"
)

func newRoot() *cobra.Command {
	g := &globals{}
	root := &cobra.Command{
		Use:   "wangell",
		Short: "Run TCP services that exist only while they are used",
		Long: `Wangell runs TCP services that exist only while they are used.

The kernel holds the first SYN to a sleeping service until the service's container
has started, and then lets that same SYN through.`,
		Example: `  sudo wangell up -f hello.yaml
  sudo wangell ps
  sudo wangell wakes hello
  wangell doctor`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          onlySubcommands,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run services:"},
		&cobra.Group{ID: groupLook, Title: "Inspect services:"},
		&cobra.Group{ID: groupMachine, Title: "The machine, the cluster and the program:"},
	)
	root.SetHelpCommandGroupID(groupMachine)
	root.SetCompletionCommandGroupID(groupMachine)
	g.register(root)
	controller := newController(g)
	controller.AddCommand(newControllerClean(g))
	root.AddCommand(
		newUp(g),
		newDown(g),
		newRestart(g),
		newExec(g),
		newStats(g),
		newImport(),
		newImage(g),
		newVolume(g),
		controller,
		newDaemon(g),
		newLab(),
		newDoctor(),
		newVersion(),
	)
	root.AddCommand(g.place().Commands()...)
	cli.MarkUsageErrors(root)
	return root
}
