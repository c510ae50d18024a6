// SPDX-License-Identifier: Apache-2.0

// Command wangell-lab measures Wangell and writes down what it measured. It is a program of its own so that wangell
// does not carry plots, load generators and test clusters. `wangell lab` runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	_ "wangell.loutres.me/internal/lab/balance"
	_ "wangell.loutres.me/internal/lab/coldkube"
	_ "wangell.loutres.me/internal/lab/onenode/capacity"
	_ "wangell.loutres.me/internal/lab/onenode/cold"
	_ "wangell.loutres.me/internal/lab/proxy/scaling"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

func main() { os.Exit(run(os.Args[1:])) }

// run executes a command line and returns the exit code. The first SIGINT or SIGTERM cancels the context, so that the
// experiment cleans up; a second one kills the process.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "wangell-lab: %v\nSee '%s --help'.\n", err, usage.command)
		return exitUsage
	default:
		fmt.Fprintf(os.Stderr, "wangell-lab: %v\n", err)
		return exitError
	}
}
