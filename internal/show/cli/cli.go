// SPDX-License-Identifier: Apache-2.0

// Package cli runs the command line of a program: signals, error messages and exit codes.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	ExitOK    = 0
	ExitError = 1
	ExitUsage = 2
)

// UsageError is an error in the command line.
type UsageError struct {
	Command string // the command whose help the message refers to
	Err     error
}

// Error implements error.
func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the command.
func (e UsageError) Unwrap() error { return e.Err }

// ExitStatus is an exit code that a command passes on from another program. Nothing is printed for it.
type ExitStatus int

// Error implements error.
func (s ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// CodedError is an error with an exit code of its own. It is printed.
type CodedError struct {
	Code int
	Err  error
}

// Error implements error.
func (e CodedError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the code.
func (e CodedError) Unwrap() error { return e.Err }

// hangupIgnored is whether this process was started with SIGHUP ignored, as by nohup(1).
var hangupIgnored = signal.Ignored(syscall.SIGHUP)

// EndSignals are the signals that ask a command to end. A terminal that is closed sends SIGHUP, unless nohup(1) has it
// ignored.
func EndSignals() []os.Signal {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !hangupIgnored {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// OutlivePipes makes a write to standard output or error whose reader has ended fail with EPIPE. By default it kills
// the process, which is wrong for a command that has something to clean up. Unlike with signal.Ignore, programs that
// the command starts have the default.
func OutlivePipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// Run executes a command line of root and returns the exit code. Errors are printed to standard error. The first of
// EndSignals cancels the command's context and restores the default action, so that a second one kills the process.
// Programs that the command starts do not inherit that SIGHUP is ignored: pods would ignore it for good.
func Run(root *cobra.Command, args []string) int {
	if hangupIgnored {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // not signal.Ignore, which programs inherit
	}
	ctx, stop := signal.NotifyContext(context.Background(), EndSignals()...)
	defer stop()
	context.AfterFunc(ctx, stop)

	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	var status ExitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", root.Name(), err)
	var usage UsageError
	if errors.As(err, &usage) {
		fmt.Fprintf(os.Stderr, "See '%s --help'.\n", usage.Command)
		return ExitUsage
	}
	var coded CodedError
	if errors.As(err, &coded) {
		return coded.Code
	}
	return ExitError
}
