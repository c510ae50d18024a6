// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/view"
)

func (p *Place) newWhy() *cobra.Command {
	var out cli.Output
	cmd := &cobra.Command{
		Use:   "why NAME",
		Short: "Explain why a service sleeps, is awake or does not wake",
		Long: `Explain the state of a service of a running 'wangell up' in sentences, each with the number
that decides: when its last packet came, how long it may go without one, how far a wake is.`,
		GroupID: GroupLook,
		Example: `  sudo wangell why hello
  sudo wangell why hello -o json | jq -r '.reasons[0]'`,
		Args:              ServiceArg,
		ValidArgsFunction: p.CompleteService,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, name, err := p.one(cmd, args[0])
			if err != nil {
				return err
			}
			defer c.Close()
			wakes, err := c.Wakes(cmd.Context(), name)
			if err != nil {
				return err
			}
			services, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			s, err := Named(services, name)
			if err != nil {
				return err
			}
			reasons := view.Why(s, wakes, time.Now())
			name = s.Service.Namespace + "/" + s.Service.Name
			if out == cli.OutputJSON {
				return cli.PrintJSON(explanation{Service: name, State: s.Service.Status.State, Reasons: reasons})
			}
			fmt.Printf("%s: %s\n", name, s.Service.Status.State)
			for _, r := range reasons {
				fmt.Printf("  %s\n", r)
			}
			return nil
		},
	}
	out.RegisterTo(cmd)
	return cmd
}

// explanation is the output of why as JSON.
type explanation struct {
	// Service is namespace/name.
	Service string   `json:"service"`
	State   string   `json:"state"`
	Reasons []string `json:"reasons"`
}
