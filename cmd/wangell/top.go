// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"wangell.loutres.me/internal/screen"
	"wangell.loutres.me/internal/view"
)

// topFlags holds the flags of top.
type topFlags struct {
	out      output
	interval time.Duration
	count    int
	order    string
}

func newTop(g *globals) *cobra.Command {
	f := &topFlags{}
	cmd := &cobra.Command{
		Use:   "top [NAME...]",
		Short: "Watch connections and bytes per second of services and their pods",
		Long: `Watch the services of a running 'wangell up', or those named: open connections, new ones and
bytes per second, of each service and each of its pods. BUSIEST/MEAN is the rate of new
connections of the busiest pod by the mean of all. Ends with Ctrl-C. If the output is
no terminal, or with -o json, each interval adds to it.`,
		GroupID: groupLook,
		Example: `  sudo wangell top
  sudo wangell top hello --interval 5s --sort open
  sudo wangell top --count 1 -o json | jq '.services[] | {name, open}'`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: g.completeService,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.interval < 100*time.Millisecond:
				return usage(cmd, "--interval %s: want at least 100ms", f.interval)
			case f.count < 0:
				return usage(cmd, "--count %d: want a number of intervals, or 0 for no end", f.count)
			case !slices.Contains(view.TopOrders(), view.TopOrder(f.order)):
				return usage(cmd, "--sort %s: want one of %v", f.order, view.TopOrders())
			}
			return f.watch(cmd.Context(), g, args)
		},
	}
	f.out.registerTo(cmd)
	cmd.Flags().DurationVar(&f.interval, "interval", time.Second, "time between two measurements")
	cmd.Flags().IntVar(&f.count, "count", 0, "number of intervals to show; 0 for no end")
	cmd.Flags().StringVar(&f.order, "sort", string(view.TopByRate), "rate (new connections per second), open or name")
	return cmd
}

// watch shows the load of the named services, or of all, until ctx ends.
func (f *topFlags) watch(ctx context.Context, g *globals, names []string) error {
	c := g.client()
	defer c.Close()
	sample := func() (s view.Sample, err error) {
		all, err := c.Status(ctx)
		if err != nil {
			return s, err
		}
		s = view.Sample{At: time.Now(), Services: all}
		if len(names) == 0 {
			return s, nil
		}
		s.Services = nil
		for _, name := range names {
			named, err := named(all, name)
			if err != nil {
				return s, err
			}
			s.Services = append(s.Services, named)
		}
		return s, nil
	}
	show, done := f.newShow()
	defer done()
	before, err := sample()
	for n := 0; err == nil && (f.count == 0 || n < f.count); n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.interval):
		}
		var after view.Sample
		if after, err = sample(); err != nil {
			break
		}
		if err := show(after.At, view.Loads(before, after, view.TopOrder(f.order))); err != nil {
			return err
		}
		before = after
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// newShow returns a function that shows loads, and one that ends it.
func (f *topFlags) newShow() (show func(time.Time, []view.ServiceLoad) error, done func()) {
	if f.out == outputJSON {
		return func(at time.Time, loads []view.ServiceLoad) error {
			return json.NewEncoder(os.Stdout).Encode(struct {
				Time     time.Time          `json:"time"`
				Services []view.ServiceLoad `json:"services"`
			}{at, loads})
		}, func() {}
	}
	if !view.IsTerminal(os.Stdout) {
		return func(at time.Time, loads []view.ServiceLoad) error {
			fmt.Println(at.Format(time.TimeOnly))
			return view.Top(os.Stdout, loads)
		}, func() {}
	}
	var lines []string
	s := screen.New(os.Stdout, terminalSize, func(int) []string { return lines })
	return func(at time.Time, loads []view.ServiceLoad) error {
		var table bytes.Buffer
		_ = view.Top(&table, loads) // writing to a buffer does not fail
		lines = append([]string{at.Format(time.TimeOnly)}, strings.Split(strings.TrimRight(table.String(), "\n"), "\n")...)
		return s.Refresh()
	}, func() { _ = s.Close() }
}

// terminalSize is that of standard output; 80 by 24 if it is not known.
func terminalSize() (width, height int) {
	width, height, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return 80, 24
	}
	return width, height
}
