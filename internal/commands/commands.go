// SPDX-License-Identifier: Apache-2.0

// Package commands has the commands that show and change services through the API of a running instance: on one machine
// for the program wangell, on a cluster for kubectl-wangell.
package commands

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/cli"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/localapi"
	"wangell.loutres.me/internal/runtime"
)

// GroupLook is the group of the commands that change nothing, GroupRun that of the others, in the help.
const (
	GroupLook = "look"
	GroupRun  = "run"
)

// Place is the location of the services: this machine or a cluster.
type Place struct {
	// Connect returns a client of the instance, and the full names of services as the user has named them. The client
	// sees at least these services; without names, all that the flags ask for.
	Connect func(cmd *cobra.Command, names ...string) (*localapi.Client, []string, error)
	// Log returns the log on standard error.
	Log func(cmd *cobra.Command) (*slog.Logger, error)
	// Move writes the traffic of services.
	Move Move
	// Cluster is set on a cluster, where the commands belong to kubectl.
	Cluster bool
	// All is the flag -A of commands about several services; nil if there is none.
	All *bool
}

// Commands returns the commands.
func (p *Place) Commands() []*cobra.Command {
	all := []*cobra.Command{
		p.newSleep(), p.newRollout(), p.newPs(), p.newTop(), p.newWakes(), p.newWhy(), p.newLogs(), p.newDashboard(),
	}
	if p.Cluster {
		for _, c := range all {
			rewrite(c)
		}
	}
	return all
}

// rewrite adapts the help of a command, and of those below it, to a cluster.
func rewrite(c *cobra.Command) {
	c.Short, c.Long, c.Example = ofCluster(c.Short), ofCluster(c.Long), ofCluster(c.Example)
	for _, below := range c.Commands() {
		rewrite(below)
	}
}

// ofCluster rewrites a text about one machine.
func ofCluster(text string) string {
	return strings.NewReplacer(
		"sudo wangell", "kubectl wangell", "'wangell ps'", "'kubectl wangell ps'",
		"a running 'wangell up'", "a cluster", "An instance keeps", "The leading controller keeps",
	).Replace(text)
}

// several adds the flag -A to a command about several services.
func (p *Place) several(cmd *cobra.Command) {
	if p.All != nil {
		cmd.Flags().BoolVarP(p.All, "all-namespaces", "A", false, "the services of all namespaces in which you may list them")
	}
}

// one connects for a command about one service, and returns its full name.
func (p *Place) one(cmd *cobra.Command, name string) (*localapi.Client, string, error) {
	c, names, err := p.Connect(cmd, name)
	if err != nil {
		return nil, "", err
	}
	return c, names[0], nil
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

// listed returns the services whose names are completed; none if there is no instance or controller.
func (p *Place) listed(cmd *cobra.Command) []controller.Status {
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

// CompleteServices completes the name of a service that is not an argument yet. On a cluster those of the namespace
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

// namesToType returns the names of the services that are not given yet, as a user types them: without their namespaces
// where that is enough and he has not begun with one.
func namesToType(services []controller.Status, given []string, typed string) (names []cobra.Completion) {
	done := map[runtime.Key]bool{}
	for _, name := range given {
		if s, err := Named(services, name); err == nil {
			done[runtime.KeyOf(&s.Service)] = true
		}
	}
	for _, s := range services {
		key, name := runtime.KeyOf(&s.Service), s.Service.Name
		if short, err := Named(services, name); err != nil || runtime.KeyOf(&short.Service) != key ||
			strings.Contains(typed, "/") {
			name = string(key)
		}
		if !done[key] {
			names = append(names, name)
		}
	}
	return names
}

// ServiceArg is a cobra.PositionalArgs for commands that take the name of one service.
func ServiceArg(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return fmt.Errorf("name a service, as NAME or NAMESPACE/NAME ('%s ps' lists them)", cmd.Root().DisplayName())
	case 1:
		return nil
	}
	return fmt.Errorf("unexpected argument %q: name one service", args[1])
}

// usage returns a usage error of a command.
var usage = cli.Usage
