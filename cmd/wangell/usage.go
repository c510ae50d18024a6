// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/cli"
)

// usage returns a usage error of a command.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return cli.UsageError{Command: cmd.CommandPath(), Err: fmt.Errorf(format, args...)}
}

// noArgs is a cobra.PositionalArgs for commands without arguments.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

// onlySubcommands is a cobra.PositionalArgs for commands that only group others.
func onlySubcommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		return fmt.Errorf("unknown command %q: did you mean %s?", args[0], oneOf(similar))
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// serviceArg is a cobra.PositionalArgs for commands that take the name of one service.
func serviceArg(_ *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return fmt.Errorf("name a service, as NAME or NAMESPACE/NAME ('wangell ps' lists them)")
	case 1:
		return nil
	}
	return fmt.Errorf("unexpected argument %q: name one service", args[1])
}

// markUsageErrors turns errors of flags and arguments of a command and its subcommands into usage errors.
func markUsageErrors(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return cli.UsageError{Command: cmd.CommandPath(), Err: err}
	})
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return cli.UsageError{Command: cmd.CommandPath(), Err: err}
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		markUsageErrors(c)
	}
}

// completeValues completes a flag with fixed values.
func completeValues(cmd *cobra.Command, flag string, values []string) {
	fixed := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, fixed); err != nil {
		panic(err) // the command has no such flag
	}
}

// oneOf returns "a, b or c".
func oneOf(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
