// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/rollout"
	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/show/view"
)

// moved is the JSON output of promote and abort.
type moved struct {
	Service string              `json:"service"`
	From    []v1alpha1.Revision `json:"from"`
	To      []v1alpha1.Revision `json:"to"`
}

func (p *Place) newRollout() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Move the traffic of a service from one revision to another",
		Long: `Look at how the requests of a service with spec.traffic are split among other services, its
revisions, and move them from one to another. Open connections stay, and no request is lost.`,
		GroupID: GroupRun,
		Example: `  sudo wangell rollout status shop
  sudo wangell rollout promote shop --percent 50
  sudo wangell rollout promote shop
  sudo wangell rollout abort shop`,
		Args: cli.OnlySubcommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(p.newRolloutStatus(), p.newPromote(), p.newAbort())
	return cmd
}

func (p *Place) newRolloutStatus() *cobra.Command {
	var out cli.Output
	cmd := &cobra.Command{
		Use:   "status NAME",
		Short: "Show the revisions of a service, with their percentages, pods and requests",
		Long: `Show the revisions of a service: the percentage of requests that each gets, its tag, its
state and pods, and its requests: per second, in total since the controller has begun, and
how many of those got no answer or one with a status code of 500 or more.`,
		Example: `  sudo wangell rollout status shop
  sudo wangell rollout status shop -o json | jq '.revisions[] | {name, percent, failedRequests}'`,
		Args:              ServiceArg,
		ValidArgsFunction: p.completeSplit,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, name, err := p.one(cmd, args[0])
			if err != nil {
				return err
			}
			defer c.Close()
			services, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			s, err := Named(services, name)
			if err != nil {
				return err
			}
			if !s.Service.Spec.SplitsTraffic() {
				return fmt.Errorf("service %s: it has no spec.traffic: its requests go to its own pods", name)
			}
			r := view.RolloutOf(s, services)
			if out == cli.OutputJSON {
				return cli.PrintJSON(r)
			}
			return view.WriteRollout(os.Stdout, r)
		},
	}
	out.RegisterTo(cmd)
	return cmd
}

func (p *Place) newPromote() *cobra.Command {
	percent, revision := 100, ""
	cmd := &cobra.Command{
		Use:   "promote NAME",
		Short: "Give a revision more of the requests, or all of them",
		Long: `Give a revision of a service --percent of the requests, by default all. It is the revision
with a tag, or without one the last one in spec.traffic; --revision names another. The
others share the rest in the proportions that they have.`,
		Example: `  sudo wangell rollout promote shop --percent 50
  sudo wangell rollout promote shop
  sudo wangell rollout promote shop --revision shop-v3 --percent 5`,
	}
	cmd.Flags().IntVar(&percent, "percent", percent, "percentage of the requests that the revision gets, 0-100")
	return p.mover(cmd, &revision, func(t []v1alpha1.Revision, at int) []v1alpha1.Revision {
		return rollout.Promote(t, at, percent)
	}, func() error {
		if percent < 0 || percent > 100 {
			return usage(cmd, "--percent %d: want a percentage from 0 to 100", percent)
		}
		return nil
	})
}

func (p *Place) newAbort() *cobra.Command {
	revision := ""
	cmd := &cobra.Command{
		Use:   "abort NAME",
		Short: "Give all requests back to the revision before",
		Long: `Take all requests from the revision of a service that is being rolled out, and give them to
the one that spec.traffic lists before it; if it is the first one, to the next. Tags stay,
so that requests with the header Wangell-Tag still reach it.`,
		Example: `  sudo wangell rollout abort shop
  sudo wangell rollout abort shop --revision shop-v3`,
	}
	return p.mover(cmd, &revision, rollout.Abort, func() error { return nil })
}

// mover completes a command that moves the traffic of a service.
func (p *Place) mover(cmd *cobra.Command, revision *string,
	next func(traffic []v1alpha1.Revision, candidate int) []v1alpha1.Revision, check func() error) *cobra.Command {
	var out cli.Output
	cmd.Args, cmd.ValidArgsFunction = ServiceArg, p.completeSplit
	cmd.Flags().StringVar(revision, "revision", "",
		"revision that is rolled out (default: the one with a tag, or the last)")
	_ = cmd.RegisterFlagCompletionFunc("revision", p.completeRevision)
	out.RegisterTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := check(); err != nil {
			return err
		}
		c, name, err := p.one(cmd, args[0])
		if err != nil {
			return err
		}
		defer c.Close()
		from, to, err := p.Move(cmd, c, name, func(t []v1alpha1.Revision) ([]v1alpha1.Revision, error) {
			at, err := rollout.Candidate(t, *revision)
			if err != nil {
				return nil, err
			}
			return next(t, at), nil
		})
		if err != nil {
			return err
		}
		if out == cli.OutputJSON {
			return cli.PrintJSON(moved{name, from, to})
		}
		fmt.Printf("%s: %s (before: %s)\n", name, rollout.Describe(to), rollout.Describe(from))
		return nil
	}
	return cmd
}

// MoveHere is Move for one machine.
func MoveHere(cmd *cobra.Command, c *httpapi.Client, name string,
	change func([]v1alpha1.Revision) ([]v1alpha1.Revision, error)) (from, to []v1alpha1.Revision, err error) {
	services, err := c.Status(cmd.Context())
	if err != nil {
		return nil, nil, err
	}
	s, err := Named(services, name)
	if err != nil {
		return nil, nil, err
	}
	from = s.Service.Spec.Traffic
	if to, err = change(from); err != nil {
		return nil, nil, fmt.Errorf("service %s: %w", name, err)
	}
	return from, to, c.SetTraffic(cmd.Context(), name, from, to)
}

// completeSplit completes the name of a service with traffic as the first argument.
func (p *Place) completeSplit(
	cmd *cobra.Command, args []string, _ string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, s := range p.listed(cmd) {
		if !s.Service.Spec.SplitsTraffic() {
			continue
		}
		name := s.Service.Namespace + "/" + s.Service.Name
		if p.Cluster {
			name = s.Service.Name
		}
		names = append(names, name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeRevision completes the flag --revision.
func (p *Place) completeRevision(
	cmd *cobra.Command, args []string, _ string,
) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if s, err := Named(p.listed(cmd), args[0]); err == nil {
		for _, r := range s.Service.Spec.Traffic {
			names = append(names, r.Revision)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
