// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/doctor"
)

func newDoctor() *cobra.Command {
	var out output
	var opt doctor.Options
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check that this machine has what Wangell needs",
		Long: `Doctor checks rights, kernel, programs and settings, and says what each is for and
what to do about a missing one. It changes nothing on the machine. It ends with
exit code 1 when something required is missing.`,
		GroupID: groupMachine,
		Example: `  sudo wangell doctor
  sudo wangell doctor -o json | jq '.[] | select(.state != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := doctor.Run(cmd.Context(), opt)
			var err error
			if out == outputJSON {
				err = printJSON(checks)
			} else {
				err = doctor.WriteTable(os.Stdout, checks)
			}
			summary := doctor.Summary(checks)
			switch {
			case err != nil:
				return err
			case len(doctor.Bad(checks)) > 0:
				return errors.New(summary)
			case out == outputTable:
				fmt.Println("\n" + summary)
			}
			return nil
		},
	}
	out.register(cmd.Flags())
	cmd.Flags().StringVar(&opt.ContainerdAddress, "containerd-address", doctor.DefaultContainerdAddress, "socket to ask whether a containerd answers")
	return cmd
}
