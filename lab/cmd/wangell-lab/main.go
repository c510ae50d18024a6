// SPDX-License-Identifier: Apache-2.0

// Command wangell-lab measures Wangell and writes reports. It is a program of its own so that wangell does not carry
// plots, load generators and test clusters. `wangell lab` runs it.
package main

import (
	"os"

	"wangell.loutres.me/internal/show/cli"
	_ "wangell.loutres.me/lab/balance"
	_ "wangell.loutres.me/lab/coldkube"
	_ "wangell.loutres.me/lab/fleet"
	_ "wangell.loutres.me/lab/flood"
	_ "wangell.loutres.me/lab/onenode/capacity"
	_ "wangell.loutres.me/lab/onenode/cold"
	_ "wangell.loutres.me/lab/prewake"
	_ "wangell.loutres.me/lab/proxy/scaling"
	_ "wangell.loutres.me/lab/pull"
	_ "wangell.loutres.me/lab/sleep"
	_ "wangell.loutres.me/lab/storage"
)

func main() { os.Exit(run(os.Args[1:])) }

// run executes a command line and returns the exit code.
func run(args []string) int { return cli.Run(newRoot(), args) }
