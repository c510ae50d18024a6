// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Usage returns a usage error of a command.
func Usage(cmd *cobra.Command, format string, args ...any) error {
	return UsageError{Command: cmd.CommandPath(), Err: fmt.Errorf(format, args...)}
}

// NoArgs is a cobra.PositionalArgs for commands without arguments.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

// OnlySubcommands is a cobra.PositionalArgs for commands that only group others.
func OnlySubcommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		return fmt.Errorf("unknown command %q: did you mean %s?", args[0], OneOf(similar))
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// MarkUsageErrors turns errors of flags and arguments of a command and its subcommands into usage errors.
func MarkUsageErrors(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return UsageError{Command: cmd.CommandPath(), Err: err}
	})
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return UsageError{Command: cmd.CommandPath(), Err: err}
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		MarkUsageErrors(c)
	}
}

// CompleteValues completes a flag with fixed values.
func CompleteValues(cmd *cobra.Command, flag string, values []string) {
	fixed := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, fixed); err != nil {
		panic(err) // the command has no such flag
	}
}

// OneOf returns "a, b or c".
func OneOf(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
