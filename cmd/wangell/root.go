// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/instance"
)

// The groups of commands in the help.
const (
	groupRun     = "run"
	groupLook    = "look"
	groupMachine = "machine"
)

// globals are the flags that every command takes.
type globals struct {
	runDir    string
	logLevel  string
	logFormat string
}

func newRoot() *cobra.Command {
	g := &globals{}
	root := &cobra.Command{
		Use:   "wangell",
		Short: "Run TCP services that cost nothing while nobody uses them",
		Long: `Wangell runs TCP services that cost nothing while nobody uses them.

The first SYN to a service that sleeps is kept by the kernel, its container is
started, and that very SYN goes on to it.`,
		Example: `  sudo wangell up -f hello.yaml
  sudo wangell ps
  sudo wangell wakes hello
  wangell doctor`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run services:"},
		&cobra.Group{ID: groupLook, Title: "Look at them:"},
		&cobra.Group{ID: groupMachine, Title: "The machine and the program:"},
	)
	root.SetHelpCommandGroupID(groupMachine)
	root.SetCompletionCommandGroupID(groupMachine)

	flags := root.PersistentFlags()
	flags.StringVar(&g.runDir, "run-dir", instance.DefaultRunDir, "folder of the instance: lock, sockets, key, mounts; one instance has one")
	flags.StringVar(&g.logLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&g.logFormat, "log-format", "text", "text or json")

	root.AddCommand(
		newUp(g),
		newDown(g),
		newSleep(g),
		newPs(g),
		newWakes(g),
		newLogs(g),
		newImage(g),
		newController(g),
		newDaemon(g),
		newLab(g),
		newDoctor(),
		newVersion(),
	)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{cmd.CommandPath(), err}
	})
	markArgErrors(root)
	return root
}

// markArgErrors makes wrong arguments of every command usage errors.
func markArgErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{cmd.CommandPath(), err}
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		markArgErrors(c)
	}
}

// usage returns a usage error of a command.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return usageError{cmd.CommandPath(), fmt.Errorf(format, args...)}
}

// logger makes the log on w that the global flags ask for.
func (g *globals) logger(cmd *cobra.Command, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(g.logLevel)); err != nil {
		return nil, usage(cmd, "--log-level %q: want debug, info, warn or error", g.logLevel)
	}
	options := &slog.HandlerOptions{Level: level}
	switch g.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	default:
		return nil, usage(cmd, "--log-format %q: want text or json", g.logFormat)
	}
}

// output is the value of a flag -o: "table" or "json".
type output string

const (
	outputTable output = "table"
	outputJSON  output = "json"
)

// register adds -o to a command.
func (o *output) register(flags *pflag.FlagSet) {
	*o = outputTable
	flags.VarP(o, "output", "o", "table or json")
}

// String implements pflag.Value.
func (o *output) String() string { return string(*o) }

// Type implements pflag.Value.
func (o *output) Type() string { return "format" }

// Set implements pflag.Value.
func (o *output) Set(s string) error {
	switch output(s) {
	case outputTable, outputJSON:
		*o = output(s)
		return nil
	}
	return fmt.Errorf("%q is not a format: want table or json", s)
}

// printJSON writes v, indented, and a newline to standard output.
func printJSON(v any) error {
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
