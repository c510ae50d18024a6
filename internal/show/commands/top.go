// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/show/view"
)

// topFlags holds the flags of top.
type topFlags struct {
	out      cli.Output
	interval time.Duration
	count    int
	order    string
}

func (p *Place) newTop() *cobra.Command {
	f := &topFlags{}
	cmd := &cobra.Command{
		Use:   "top [NAME...]",
		Short: "Watch connections and bytes per second of services and their pods",
		Long: `Watch the services of a running 'wangell up', or those named: open connections, new ones and
bytes per second, of each service and each of its pods. REQ/S is there if a service has
balancing.level: Request. BUSIEST/MEAN is the rate of requests, or otherwise of new
connections, of the busiest pod by the mean of all.

On a terminal, keys change the order (r: rate, o: open, n: name), show or hide pods (p), stop
and continue (space), scroll (arrows, PgUp, PgDn), and end it (q or Ctrl-C). If the input or the
output is no terminal, with --count or with -o json, each interval adds to the output.`,
		GroupID: GroupLook,
		Example: `  sudo wangell top
  sudo wangell top hello --interval 5s --sort open
  sudo wangell top --count 1 -o json | jq '.services[] | {name, open}'`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: p.CompleteServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.interval < 100*time.Millisecond:
				return usage(cmd, "--interval %s: want at least 100ms", f.interval)
			case f.count < 0:
				return usage(cmd, "--count %d: want a number of intervals, or 0 for no end", f.count)
			case !slices.Contains(view.TopOrders(), view.TopOrder(f.order)):
				return usage(cmd, "--sort %s: want one of %v", f.order, view.TopOrders())
			}
			c, names, err := p.Connect(cmd, args...)
			if err != nil {
				return err
			}
			defer c.Close()
			return f.watch(cmd.Context(), func(ctx context.Context) (view.Sample, error) { return sample(ctx, c, names) })
		},
	}
	f.out.RegisterTo(cmd)
	p.several(cmd)
	cmd.Flags().DurationVar(&f.interval, "interval", time.Second, "time between two measurements")
	cmd.Flags().IntVar(&f.count, "count", 0, "number of intervals to show; 0 for no end")
	cmd.Flags().StringVar(&f.order, "sort", string(view.TopByRate),
		"rate (requests or new connections per second), open or name")
	orders := make([]string, 0, 3)
	for _, o := range view.TopOrders() {
		orders = append(orders, string(o))
	}
	cli.CompleteValues(cmd, "sort", orders)
	return cmd
}

// sample returns the present status of the named services, or of all.
func sample(ctx context.Context, c *httpapi.Client, names []string) (s view.Sample, err error) {
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
		found, err := Named(all, name)
		if err != nil {
			return s, err
		}
		s.Services = append(s.Services, found)
	}
	return s, nil
}

// watch shows the loads of services until ctx ends.
func (f *topFlags) watch(ctx context.Context, sample func(context.Context) (view.Sample, error)) error {
	if f.out == cli.OutputTable && f.count == 0 && view.IsTerminal(os.Stdout) && view.IsTerminal(os.Stdin) {
		return runTop(ctx, sample, f.interval, view.TopOrder(f.order))
	}
	before, err := sample(ctx)
	for n := 0; err == nil && (f.count == 0 || n < f.count); n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.interval):
		}
		var after view.Sample
		if after, err = sample(ctx); err != nil {
			break
		}
		if err := f.print(after.At, view.Loads(before, after, view.TopOrder(f.order))); err != nil {
			return err
		}
		before = after
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// print adds the loads of an interval to the output.
func (f *topFlags) print(at time.Time, loads []view.ServiceLoad) error {
	if f.out == cli.OutputJSON {
		return json.NewEncoder(os.Stdout).Encode(struct {
			Time     time.Time          `json:"time"`
			Services []view.ServiceLoad `json:"services"`
		}{at, loads})
	}
	fmt.Println(at.Format(time.TimeOnly))
	return view.Top(os.Stdout, loads)
}
