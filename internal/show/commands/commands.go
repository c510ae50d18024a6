// SPDX-License-Identifier: Apache-2.0

// Package commands has the commands that show and change services through the API of a running instance: on one machine
// for the program wangell, on a cluster for kubectl-wangell.
package commands

import (
	"strings"

	"github.com/spf13/cobra"
)

// Commands returns the commands.
func (p *Place) Commands() []*cobra.Command {
	all := []*cobra.Command{
		p.newWake(), p.newSleep(), p.newRollout(), p.newPs(), p.newTop(), p.newWakes(), p.newWhy(), p.newLogs(),
		p.newDashboard(),
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
