// SPDX-License-Identifier: Apache-2.0

// Command wangell runs TCP services that exist only while they are used.
package main

import (
	"os"

	"wangell.loutres.me/internal/cli"
)

func main() { os.Exit(run(os.Args[1:])) }

// run executes a command line and returns the exit code.
func run(args []string) int { return cli.Run(newRoot(), args) }
