// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/machine/instance"
	"wangell.loutres.me/internal/machine/volume"
	"wangell.loutres.me/internal/show/cli"
)

func newVolume(g *globals) *cobra.Command {
	p := &volumePlace{g: g}
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "List, measure, back up, restore and remove persistent volumes",
		Long: `Persistent volumes (volumes[].persistent in a manifest) are kept in the state folder. They are
made when their service is woken for the first time, and stay when it sleeps, when it is
removed (unless persistent.retain is false) and when 'wangell up' ends.`,
		GroupID: groupMachine,
		Example: `  sudo wangell volume ls
  sudo wangell volume backup redmine.data > redmine.tar.zst`,
		Args: onlySubcommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&p.stateDir, "state-dir", instance.DefaultStateDir, "state folder of the instance")
	_ = cmd.MarkPersistentFlagDirname("state-dir") // the flag exists
	cmd.AddCommand(p.newLs(), p.newDu(), p.newRm(), p.newBackup(), p.newRestore())
	return cmd
}

func (p *volumePlace) newLs() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List persistent volumes",
		Long: `List the persistent volumes of this machine: the size that each may have, the service that used
it last, and the pods that use it now. 'wangell volume du' measures what is in them.`,
		Example: `  sudo wangell volume ls
  sudo wangell volume ls -o json | jq -r '.[] | select(.pods == null) | .name'`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			store, err := p.store()
			if err != nil {
				return err
			}
			list, err := store.List()
			if err != nil {
				return err
			}
			if out == cli.OutputJSON {
				return cli.PrintJSON(list)
			}
			t := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
			fmt.Fprintln(t, "VOLUME\tSIZE\tSERVICE\tPODS\tCREATED")
			for _, v := range list {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", v.ID(), text.BytesLimit(v.SizeBytes), cmp.Or(v.Service, "-"),
					cmp.Or(strings.Join(v.Pods, ","), "-"), v.Created.Local().Format(time.DateTime))
			}
			return t.Flush()
		},
	}
	out.RegisterTo(cmd)
	return cmd
}

// measured is a volume with its usage.
type measured struct {
	volume.Info
	volume.Usage
}

func (p *volumePlace) newDu() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "du [VOLUME...]",
		Short: "Measure how much of persistent volumes is used",
		Long: `Measure what the volumes hold, of all or of those named, by looking at each file. One with a
size is mounted meanwhile if no pod uses it.`,
		Example: `  sudo wangell volume du
  sudo wangell volume du redmine.data -o json | jq '.[0].usedBytes'`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: p.complete(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := p.store()
			if err != nil {
				return err
			}
			list, err := find(store, args)
			if err != nil {
				return err
			}
			all := []measured{}
			for _, v := range list {
				u, err := store.Usage(cmd.Context(), v.ID())
				if err != nil {
					return err
				}
				all = append(all, measured{v, u})
			}
			if out == cli.OutputJSON {
				return cli.PrintJSON(all)
			}
			t := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
			fmt.Fprintln(t, "VOLUME\tUSED\tAVAILABLE\tSIZE\tFILES")
			for _, v := range all {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\n", v.ID(), text.Bytes(v.UsedBytes), text.Bytes(v.AvailableBytes),
					text.BytesLimit(v.SizeBytes), v.Files)
			}
			return t.Flush()
		},
	}
	out.RegisterTo(cmd)
	return cmd
}

// find returns the volumes named, or all.
func find(store *volume.Store, names []string) ([]volume.Info, error) {
	if len(names) == 0 {
		return store.List()
	}
	var list []volume.Info
	var errs []error
	for _, n := range names {
		v, err := store.Find(n)
		list, errs = append(list, v), append(errs, err)
	}
	return list, errors.Join(errs...)
}

func (p *volumePlace) newRm() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm VOLUME...",
		Short: "Remove persistent volumes and everything in them",
		Long: `Remove persistent volumes and everything in them. None is removed if a pod uses one of them, or
if a service of the running instance has it: --force removes that of a service that sleeps,
and the service begins with an empty one.`,
		Example: `  sudo wangell volume rm redmine.data
  sudo wangell volume rm shop/db.data --force`,
		ValidArgsFunction: p.complete(0),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return volumeArg(nil, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := p.store()
			if err != nil {
				return err
			}
			list, err := find(store, args)
			if err != nil {
				return err
			}
			if !force {
				if err := p.unused(cmd.Context(), list); err != nil {
					return err
				}
			}
			for _, v := range list {
				if len(v.Pods) > 0 {
					return volume.HeldError{ID: v.ID(), Pod: v.Pods[0], Service: v.Service}
				}
			}
			for _, v := range list {
				if err := store.RemoveUnheld(cmd.Context(), v.ID()); err != nil {
					return err
				}
				fmt.Printf("removed %s\n", v.ID())
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also remove the volume of a service that sleeps")
	return cmd
}
