// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/kube/clusterapi"
	"wangell.loutres.me/internal/kube/clusterdoctor"
	"wangell.loutres.me/internal/show/cli"
)

func newDoctor(c *cluster) *cobra.Command {
	var out cli.Output
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check that Wangell works on this cluster, and what you may do",
		Long: `Check the definition of WangellServices, the leading controller and its API, the daemons, and
your own rights. Nothing is changed. What you may not look at is skipped. The exit code is 1 if
something does not work. 'wangell doctor' on a node checks what the node lacks.`,
		GroupID: groupCluster,
		Example: `  kubectl wangell doctor
  kubectl wangell doctor -n team -o json | jq '.[] | select(.state != "ok")'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			of, err := c.names()
			if err != nil {
				return err
			}
			r, namespace, err := c.config()
			if err != nil {
				return err
			}
			client, err := clusterapi.NewClient(r, of, namespace)
			if err != nil {
				return err
			}
			defer client.Close()
			checks, err := clusterdoctor.Run(cmd.Context(), r, of, client, namespace)
			if err != nil {
				return err
			}
			if out == cli.OutputJSON {
				err = cli.PrintJSON(checks)
			} else {
				err = clusterdoctor.WriteTable(os.Stdout, checks)
			}
			if bad := clusterdoctor.Bad(checks); err == nil && len(bad) > 0 {
				return errors.New(fmt.Sprint("failed: ", strings.Join(bad, ", ")))
			}
			return err
		},
	}
	out.RegisterTo(cmd)
	return cmd
}
