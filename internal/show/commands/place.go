// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/httpapi"
)

// GroupLook and GroupRun are the groups in the help: of commands that change nothing, and of the others.
const (
	GroupLook = "look"
	GroupRun  = "run"
)

// Place is the location of the services: this machine or a cluster.
type Place struct {
	// Connect returns a client of the instance, and the full names of services as the user has named them. The client
	// sees at least these services; without names, all that the flags ask for.
	Connect func(cmd *cobra.Command, names ...string) (*httpapi.Client, []string, error)
	// Log returns the log on standard error.
	Log func(cmd *cobra.Command) (*slog.Logger, error)
	// Move writes the traffic of services.
	Move Move
	// Cluster is set on a cluster, where the commands belong to kubectl.
	Cluster bool
	// All is the flag -A of commands about several services; nil if there is none.
	All *bool
}

// Move replaces the traffic of a service by the result of change. It returns the old and the new traffic.
type Move func(cmd *cobra.Command, c *httpapi.Client, name string,
	change func([]v1alpha1.Revision) ([]v1alpha1.Revision, error)) (from, to []v1alpha1.Revision, err error)

// several adds the flag -A to a command about several services.
func (p *Place) several(cmd *cobra.Command) {
	if p.All != nil {
		cmd.Flags().BoolVarP(p.All, "all-namespaces", "A", false, "the services of all namespaces in which you may list them")
	}
}

// one connects for a command about one service, and returns its full name.
func (p *Place) one(cmd *cobra.Command, name string) (*httpapi.Client, string, error) {
	c, names, err := p.Connect(cmd, name)
	if err != nil {
		return nil, "", err
	}
	return c, names[0], nil
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
