// SPDX-License-Identifier: Apache-2.0

// Command kubectl-wangell is the plugin of kubectl for the services of a cluster: 'kubectl wangell'.
package main

import (
	"os"
	"path/filepath"
	"strings"

	"wangell.loutres.me/internal/show/cli"
)

// completer is the name under which kubectl calls a program to complete the arguments of this plugin.
const completer = "kubectl_complete-wangell"

func main() { os.Exit(cli.Run(newRoot(), arguments(os.Args))) }

// arguments returns the command line of a call by one of the two names.
func arguments(args []string) []string {
	if strings.TrimSuffix(filepath.Base(args[0]), ".exe") == completer {
		return append([]string{"__complete"}, args[1:]...)
	}
	return args[1:]
}
