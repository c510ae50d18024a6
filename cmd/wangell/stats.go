// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/show/view"
	"wangell.loutres.me/internal/status"
)

// statsFlags holds the flags of stats.
type statsFlags struct {
	out      output
	interval time.Duration
	count    int
}

func newStats(g *globals) *cobra.Command {
	f := &statsFlags{}
	cmd := &cobra.Command{
		Use:   "stats [NAME]",
		Short: "Show the CPU, memory and throttling of containers",
		Long: `Show what the containers of all services, or of the one named, use: CPU (100 % is one core)
over the interval, memory that cannot be reclaimed and its limit, and throttling: in how
many of the scheduler's periods the container had used up its CPU limit and had to wait,
in the interval and since its start. A container that is throttled is slow although the
machine may be idle: raise resources.limits.cpu. Services that sleep use nothing.`,
		GroupID: groupLook,
		Example: `  sudo wangell stats
  sudo wangell stats hello --interval 5s --count 10
  sudo wangell stats -o json | jq '.[] | {pod, cores, memoryBytes, throttledPercent}'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("unexpected argument %q: name one service, or none", args[1])
			}
			return nil
		},
		ValidArgsFunction: g.place().CompleteService,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.interval < 100*time.Millisecond:
				return usage(cmd, "--interval %s: want at least 100ms", f.interval)
			case f.count < 0:
				return usage(cmd, "--count %d: want a number of intervals, or 0 for no end", f.count)
			}
			c := g.client()
			defer c.Close()
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			return f.show(cmd.Context(), c, name)
		},
	}
	f.out.RegisterTo(cmd)
	cmd.Flags().DurationVar(&f.interval, "interval", time.Second, "time between two measurements")
	cmd.Flags().IntVar(&f.count, "count", 1, "number of intervals to show; 0 for no end")
	return cmd
}

// show measures and prints until count intervals have passed or ctx ends.
func (f *statsFlags) show(ctx context.Context, c *httpapi.Client, name string) error {
	before, err := c.Stats(ctx, name)
	if err != nil {
		return err
	}
	for n := 0; f.count == 0 || n < f.count; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.interval):
		}
		var after []status.PodUsage
		if after, err = c.Stats(ctx, name); err != nil {
			break
		}
		uses := view.PodUses(before, after)
		if f.out == cli.OutputJSON {
			err = cli.PrintJSON(uses)
		} else {
			err = view.Stats(os.Stdout, uses)
		}
		if err != nil {
			break
		}
		before = after
	}
	if ctx.Err() != nil {
		return nil // Ctrl-C is the way to end it
	}
	return err
}
