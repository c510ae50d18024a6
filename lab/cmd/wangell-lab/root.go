// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/base/buildinfo"
	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/onenode"
	"wangell.loutres.me/lab/strangers"
	"wangell.loutres.me/lab/wired"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "wangell-lab",
		Short: "Measure Wangell on this machine",
		Long: `Wangell-lab runs experiments, each the answer to one question. Experiments on one machine
run in network namespaces of their own, with an instance of their own; the others run on a
cluster started by test/cluster. They leave nothing behind but a report: DIR/NAME.json (raw
samples, parameters, versions, summary), .md, .svg and .png.`,
		Example: `  sudo wangell-lab cold --out out
  sudo wangell-lab capacity --out out`,
		Version:       buildinfo.Get().Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, e := range lab.Experiments() {
		root.AddCommand(newExperiment(e, e.Name))
		if e.Deprecated != "" {
			former := newExperiment(e, e.Deprecated)
			former.Hidden = true
			former.Deprecated = "use " + e.Name
			root.AddCommand(former)
		}
	}
	root.AddCommand(newRender(), newFloor(), newFleetController(), newStrangersDaemons())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return cli.UsageError{Command: cmd.CommandPath(), Err: err}
	})
	markArgErrors(root)
	return root
}

// markArgErrors turns invalid arguments of every command into usage errors.
func markArgErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return cli.UsageError{Command: cmd.CommandPath(), Err: err}
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		markArgErrors(c)
	}
}

// newFloor is the process that experiments start to measure the floor. It is not a command for users.
func newFloor() *cobra.Command {
	return &cobra.Command{
		Use:     "floor",
		Short:   "Measure the floor on request, for an experiment",
		Example: `  wangell-lab floor < requests.jsonl`,
		Hidden:  true,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			return onenode.RunFloor(cmd.Context(), os.Stdin, os.Stdout, log)
		},
	}
}

// newFleetController is the controller that experiments start. It is not a command for users.
func newFleetController() *cobra.Command {
	return &cobra.Command{
		Use:     "fleet-controller",
		Short:   "Run a controller on request, for an experiment",
		Example: `  wangell-lab fleet-controller < requests`,
		Hidden:  true,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
			return wired.RunController(cmd.Context(), os.Stdin, os.Stdout, log)
		},
	}
}

// newStrangersDaemons is the process of daemons that the experiment strangers starts. It is not a command for users.
func newStrangersDaemons() *cobra.Command {
	return &cobra.Command{
		Use:     "strangers-daemons",
		Short:   "Run daemons on request, for an experiment",
		Example: `  wangell-lab strangers-daemons < requests`,
		Hidden:  true,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return strangers.RunDaemons(cmd.Context(), os.Stdin, os.Stdout)
		},
	}
}
