// SPDX-License-Identifier: Apache-2.0

// Command wangell-lab measures Wangell and writes reports. It is a program of its own so that wangell does not carry
// plots, load generators and test clusters. `wangell lab` runs it.
package main

import (
	"os"

	"wangell.loutres.me/internal/cli"
	_ "wangell.loutres.me/internal/lab/balance"
	_ "wangell.loutres.me/internal/lab/coldkube"
	_ "wangell.loutres.me/internal/lab/fleet"
	_ "wangell.loutres.me/internal/lab/flood"
	_ "wangell.loutres.me/internal/lab/onenode/capacity"
	_ "wangell.loutres.me/internal/lab/onenode/cold"
	_ "wangell.loutres.me/internal/lab/prewake"
	_ "wangell.loutres.me/internal/lab/proxy/scaling"
	_ "wangell.loutres.me/internal/lab/pull"
	_ "wangell.loutres.me/internal/lab/sleep"
	_ "wangell.loutres.me/internal/lab/storage"
)

func main() { os.Exit(run(os.Args[1:])) }

// run executes a command line and returns the exit code.
func run(args []string) int { return cli.Run(newRoot(), args) }
