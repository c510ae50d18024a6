// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"wangell.loutres.me/internal/lifecycle"
)

func newWakes(g *globals) *cobra.Command {
	var out output
	var last int
	cmd := &cobra.Command{
		Use:   "wakes [NAME]",
		Short: "Draw where the time of the last wakes went",
		Long: `Wakes draws the phases of a wake, from the first SYN to the first byte of the answer.
The last 100 wakes of an instance are kept.`,
		GroupID: groupLook,
		Example: `  sudo wangell wakes hello
  sudo wangell wakes --last 5
  sudo wangell wakes hello --last 0 -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 0 {
				return usage(cmd, "--last %d: want a number of wakes, or 0 for all", last)
			}
			name := ""
			if len(args) == 1 {
				name = args[0]
			}
			c := g.client()
			defer c.Close()
			wakes, err := c.Wakes(cmd.Context(), name)
			if err != nil {
				return err
			}
			if last > 0 && len(wakes) > last {
				wakes = wakes[len(wakes)-last:]
			}
			if out == outputJSON {
				return printJSON(wakes)
			}
			return drawWakes(wakes)
		},
	}
	out.register(cmd.Flags())
	cmd.Flags().IntVar(&last, "last", 1, "how many wakes, the latest last; 0 is all that are kept")
	return cmd
}

func drawWakes(wakes []lifecycle.Waterfall) error {
	if len(wakes) == 0 {
		fmt.Fprintln(os.Stderr, "no wake yet")
		return nil
	}
	const usual = 100
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		width = usual
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
