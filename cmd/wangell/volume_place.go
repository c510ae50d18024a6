// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/machine/instance"
	"wangell.loutres.me/internal/machine/volume"
	"wangell.loutres.me/internal/show/cli"
)

// volumePlace says where the volumes are.
type volumePlace struct {
	g        *globals
	stateDir string
}

// store returns the volumes, after a check of the rights to them.
func (p *volumePlace) store() (*volume.Store, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("volumes belong to root: use sudo")
	}
	cli.OutlivePipes() // a volume must be unmounted
	return instance.Volumes(p.stateDir, p.g.runDir)
}

// complete completes names of volumes that are not arguments yet.
func (p *volumePlace) complete(most int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, typed string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		store, err := p.store()
		if err != nil || most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list, _ := store.List() // without a list there is nothing to complete
		return volumesToType(list, args, typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// volumeArg is a cobra.PositionalArgs for commands that take the name of one volume.
func volumeArg(_ *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return errors.New("name a volume, as NAME or NAMESPACE/NAME ('wangell volume ls' lists them)")
	case 1:
		return nil
	}
	return fmt.Errorf("unexpected argument %q: name one volume", args[1])
}

// volumesToType returns the names of the volumes that are not given yet, as a user types them: without their namespaces
// where that is enough and he has not begun with one.
func volumesToType(list []volume.Info, given []string, typed string) (names []cobra.Completion) {
	number := map[string]int{}
	for _, v := range list {
		number[v.Name]++
	}
	for _, v := range list {
		full, alone := v.ID().String(), number[v.Name] == 1
		if slices.Contains(given, full) || alone && slices.Contains(given, v.Name) {
			continue
		}
		if alone && !strings.Contains(typed, "/") {
			full = v.Name
		}
		names = append(names, full)
	}
	return names
}

// unused returns an error if a service of the running instance has one of the volumes.
func (p *volumePlace) unused(ctx context.Context, list []volume.Info) error {
	services, err := p.g.servicesIfRunning(ctx)
	if err != nil {
		return err
	}
	for _, s := range services {
		k := string(v1alpha1.KeyOf(&s.Service))
		ofImage := func(v volume.Info) bool { return v.Service == k && v.OfImage(s.Service.Name) }
		if i := slices.IndexFunc(list, ofImage); i >= 0 {
			return fmt.Errorf("volume %s: service %s has it, because its image declares it: remove the service first, or add "+
				"--force", list[i].ID(), k)
		}
		for _, has := range s.Service.Spec.PersistentVolumes() {
			id := volume.IDOf(&s.Service, has)
			if slices.ContainsFunc(list, func(v volume.Info) bool { return v.ID() == id }) {
				return fmt.Errorf("volume %s: service %s/%s has it: remove the service first, or add --force", id,
					s.Service.Namespace, s.Service.Name)
			}
		}
	}
	return nil
}
