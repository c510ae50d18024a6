// SPDX-License-Identifier: Apache-2.0

// Command wangell runs TCP services that exist only while they are used.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

func main() { os.Exit(run(os.Args[1:])) }

// run executes a command line and returns the exit code. The first SIGINT or SIGTERM cancels the command's context and
// restores the default action, so that a second one kills the process.
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
		fmt.Fprintf(os.Stderr, "wangell: %v\n", err)
		fmt.Fprintf(os.Stderr, "See '%s --help'.\n", usage.command)
		return exitUsage
	default:
		fmt.Fprintf(os.Stderr, "wangell: %v\n", err)
		return exitError
	}
}
