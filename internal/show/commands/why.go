// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/show/view"
)

func (p *Place) newWhy() *cobra.Command {
	var out cli.Output
	cmd := &cobra.Command{
		Use:   "why NAME",
		Short: "Explain why a service sleeps, is awake or does not wake",
		Long: `Explain the state of a service of a running 'wangell up' in sentences, each with the number
that decides: when its last packet came, how long it may go without one, how far a wake is.
If it does not start well, the end of its output follows.`,
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
			var output []string
			if view.WantsOutput(s, wakes) {
				output = lastOutput(cmd.Context(), c, name)
			}
			if out == cli.OutputJSON {
				return cli.PrintJSON(explanation{
					Service: name, State: s.Service.Status.State, Reasons: reasons, Output: output,
				})
			}
			fmt.Printf("%s: %s\n", name, view.State(s))
			for _, r := range reasons {
				fmt.Printf("  %s\n", r)
			}
			if len(output) > 0 {
				fmt.Printf("  The end of its output:\n    %s\n", strings.Join(output, "\n    "))
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
	// Output is the end of what its program has written, if it does not start well.
	Output []string `json:"output,omitempty"`
}

const (
	outputLines   = 8
	outputTimeout = 2 * time.Second
)

// lastOutput returns the last lines that the program of a service has written; none for people who may not read logs.
func lastOutput(ctx context.Context, c *httpapi.Client, name string) []string {
	ctx, cancel := context.WithTimeout(ctx, outputTimeout)
	defer cancel()
	var b strings.Builder
	if err := c.Logs(ctx, name, &b, runtime.LogOptions{Tail: outputLines}); err != nil {
		return nil
	}
	return printable(b.String(), outputLines)
}

// printable returns the last n lines of a text, without characters that a terminal would act upon.
func printable(text string, n int) []string {
	text = strings.Map(func(r rune) rune {
		if r == '\t' || r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.TrimRight(text, "\n"))
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	return lines[max(0, len(lines)-n):]
}
