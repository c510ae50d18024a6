// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/base/buildinfo"
	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/commands"
)

func newRoot() *cobra.Command {
	c := newCluster()
	root := &cobra.Command{
		Use:         "kubectl-wangell",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl wangell"},
		Short:       "Watch the services of a cluster that exist only while they are used",
		Long: `Watch the WangellServices of a cluster, see why they sleep or do not, and how they woke.

The leading controller answers, through the API server, with your own rights: you see the
services of the namespaces in which you may list wangellservices. To wake one or put it
to sleep you need the right to patch wangellservices/scale, for logs that to get pods/log,
for port-forward that to create pods/portforward as well, for rollouts those to get and patch
wangellservices.`,
		Example: `  kubectl wangell ps -A
  kubectl wangell top -n team
  kubectl wangell why hello
  kubectl wangell dashboard -A
  kubectl wangell doctor`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       buildinfo.Version,
		Args:          cli.OnlySubcommands,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddGroup(
		&cobra.Group{ID: commands.GroupRun, Title: "Run services:"},
		&cobra.Group{ID: commands.GroupLook, Title: "Inspect services:"},
		&cobra.Group{ID: groupCluster, Title: "The cluster and the program:"},
	)
	root.SetHelpCommandGroupID(groupCluster)
	root.SetCompletionCommandGroupID(groupCluster)
	c.register(root)
	place := &commands.Place{Connect: c.connect, Log: logger, Move: c.move, Cluster: true, All: &c.all}
	root.AddCommand(place.Commands()...)
	root.AddCommand(newPortForward(c, place), newDoctor(c))
	cli.MarkUsageErrors(root)
	return root
}

// logger is commands.Place's Log.
func logger(*cobra.Command) (*slog.Logger, error) {
	return slog.New(slog.NewTextHandler(os.Stderr, nil)), nil
}
