// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/machine/doctor"
	"wangell.loutres.me/internal/machine/instance"
	"wangell.loutres.me/internal/show/cli"
)

func newDoctor() *cobra.Command {
	var out output
	var opt doctor.Options
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check that this machine can run Wangell",
		Long: `Check capabilities, kernel, programs and settings. For each, print what Wangell needs
it for and what to do if it is missing. The machine is not changed. The exit code is 1
if something required is missing.`,
		GroupID: groupMachine,
		Example: `  sudo wangell doctor
  sudo wangell doctor -o json | jq '.[] | select(.state != "ok")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if opt.Snapshotter == "" {
				opt.Snapshotter, err = instance.LastSnapshotter(opt.StateDir)
				if err != nil && !errors.Is(err, fs.ErrPermission) {
					return err
				}
			}
			checks := doctor.Run(cmd.Context(), opt)
			if out == cli.OutputJSON {
				err = cli.PrintJSON(checks)
			} else {
				err = doctor.WriteTable(os.Stdout, checks)
			}
			summary := doctor.Summary(checks)
			switch {
			case err != nil:
				return err
			case len(doctor.Bad(checks)) > 0:
				return errors.New(summary)
			case out == cli.OutputTable:
				fmt.Println("\n" + summary)
			}
			return nil
		},
	}
	out.RegisterTo(cmd)
	cmd.Flags().StringVar(&opt.ContainerdAddress, "containerd-address", doctor.DefaultContainerdAddress,
		"socket on which to look for a containerd")
	cmd.Flags().StringVar(&opt.StateDir, "state-dir", instance.DefaultStateDir, "state folder of the instance")
	cmd.Flags().StringVar(&opt.Snapshotter, "snapshotter", "",
		"snapshotter of containerd to check for (default: that of the state folder's last instance)")
	_ = cmd.MarkFlagDirname("state-dir") // the flag exists
	completeValues(cmd, "snapshotter", snapshotters)
	return cmd
}
