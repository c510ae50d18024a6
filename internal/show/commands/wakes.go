// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/show/cli"
)

func (p *Place) newWakes() *cobra.Command {
	var out cli.Output
	var last int
	cmd := &cobra.Command{
		Use:   "wakes [NAME]",
		Short: "Show how long each phase of recent wakes took",
		Long: `Draw the phases of recent wakes, from the first SYN to the first byte of the response.
An instance keeps its last 100 wakes.`,
		GroupID: GroupLook,
		Example: `  sudo wangell wakes hello
  sudo wangell wakes --last 5
  sudo wangell wakes hello --last 0 -o json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil // all services
			}
			return ServiceArg(cmd, args)
		},
		ValidArgsFunction: p.CompleteService,
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 0 {
				return usage(cmd, "--last %d: want a number of wakes, or 0 for all", last)
			}
			c, names, err := p.Connect(cmd, args...)
			if err != nil {
				return err
			}
			defer c.Close()
			wakes, err := c.Wakes(cmd.Context(), strings.Join(names, "")) // at most one
			if err != nil {
				return err
			}
			if last > 0 && len(wakes) > last {
				wakes = wakes[len(wakes)-last:]
			}
			if out == cli.OutputJSON {
				return cli.PrintJSON(wakes)
			}
			return drawWakes(wakes)
		},
	}
	out.RegisterTo(cmd)
	p.several(cmd)
	cmd.Flags().IntVar(&last, "last", 1, "number of wakes to show, the latest last; 0 shows all")
	return cmd
}

func drawWakes(wakes []lifecycle.Waterfall) error {
	if len(wakes) == 0 {
		fmt.Fprintln(os.Stderr, "no wakes yet")
		return nil
	}
	const defaultWidth = 100
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		width = defaultWidth
	}
	for i, w := range wakes {
		if i > 0 {
			fmt.Println()
		}
		if err := lifecycle.Draw(os.Stdout, w, width); err != nil {
			return err
		}
	}
	return nil
}
