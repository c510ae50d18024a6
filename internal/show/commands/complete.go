// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

// Named returns the service with a name, as Controller.Resolve does: namespace/name, or the name alone if only one
// service has it, or one in the namespace default.
func Named(services []status.Status, name string) (found status.Status, err error) {
	var keys []v1alpha1.Key
	for _, s := range services {
		switch key := v1alpha1.KeyOf(&s.Service); {
		case string(key) == name, string(key) == "default/"+name:
			return s, nil
		case s.Service.Name == name:
			found, keys = s, append(keys, key)
		}
	}
	switch len(keys) {
	case 1:
		return found, nil
	case 0:
		return found, fmt.Errorf("service %q: %w", name, runtime.ErrNotFound)
	}
	return status.Status{}, fmt.Errorf("service %q: there are several: %v: name one with its namespace", name, keys)
}

// CompleteService completes the name of a service as the first argument.
func (p *Place) CompleteService(
	cmd *cobra.Command, args []string, typed string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return p.CompleteServices(cmd, args, typed)
}

// CompleteServices completes the name of a service that is not an argument yet. On a cluster, names in the namespace
// have no namespace, as with kubectl.
func (p *Place) CompleteServices(
	cmd *cobra.Command, args []string, typed string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	services := p.listed(cmd)
	if p.Cluster {
		var names []cobra.Completion
		for _, s := range services {
			name := s.Service.Namespace + "/" + s.Service.Name
			if p.All == nil || !*p.All {
				name = s.Service.Name
			}
			if !slices.Contains(args, name) {
				names = append(names, name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	return namesToType(services, args, typed), cobra.ShellCompDirectiveNoFileComp
}

// listed returns the services whose names are completed; none if there is no instance or controller.
func (p *Place) listed(cmd *cobra.Command) []status.Status {
	c, _, err := p.Connect(cmd)
	if err != nil {
		return nil
	}
	defer c.Close()
	services, err := c.Status(cmd.Context())
	if err != nil {
		return nil
	}
	return services
}

// namesToType returns the names of the services that are not given yet, as a user types them: without their namespaces
// where that is enough and he has not begun with one.
func namesToType(services []status.Status, given []string, typed string) (names []cobra.Completion) {
	done := map[v1alpha1.Key]bool{}
	for _, name := range given {
		if s, err := Named(services, name); err == nil {
			done[v1alpha1.KeyOf(&s.Service)] = true
		}
	}
	for _, s := range services {
		key, name := v1alpha1.KeyOf(&s.Service), s.Service.Name
		if short, err := Named(services, name); err != nil || v1alpha1.KeyOf(&short.Service) != key ||
			strings.Contains(typed, "/") {
			name = string(key)
		}
		if !done[key] {
			names = append(names, name)
		}
	}
	return names
}

// ContainerFlag adds the flag --container, with the names of the service's containers to complete it.
func (p *Place) ContainerFlag(cmd *cobra.Command, value *string, what string) {
	cmd.Flags().StringVarP(value, "container", "c", "", "container "+what+" (default: the main one)")
	_ = cmd.RegisterFlagCompletionFunc("container", func(cmd *cobra.Command, args []string, _ string) (
		[]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return p.completeContainers(cmd, args[0]), cobra.ShellCompDirectiveNoFileComp
	})
}

// completeContainers returns the names of the containers of a service.
func (p *Place) completeContainers(cmd *cobra.Command, service string) []cobra.Completion {
	s, err := Named(p.listed(cmd), service)
	if err != nil {
		return nil
	}
	return s.Service.ContainerNames()
}
