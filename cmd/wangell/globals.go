// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/machine/instance"
	"wangell.loutres.me/internal/show/commands"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/status"
)

// Values of flags, for completion and messages.
var (
	logLevels  = []string{"debug", "info", "warn", "error"}
	logFormats = []string{"text", "json"}
)

// globals holds the flags that every command has.
type globals struct {
	runDir    string
	logLevel  string
	logFormat string
}

// register adds the flags to the root command.
func (g *globals) register(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&g.runDir, "run-dir", instance.DefaultRunDir,
		"folder for the lock, sockets, key and mounts of an instance; each instance needs its own")
	flags.StringVar(&g.logLevel, "log-level", "info", oneOf(logLevels))
	flags.StringVar(&g.logFormat, "log-format", "text", oneOf(logFormats))
	completeValues(root, "log-level", logLevels)
	completeValues(root, "log-format", logFormats)
}

// logger returns the log on w that the flags ask for.
func (g *globals) logger(cmd *cobra.Command, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(g.logLevel)); err != nil {
		return nil, usage(cmd, "--log-level %q: want %s", g.logLevel, oneOf(logLevels))
	}
	options := &slog.HandlerOptions{Level: level}
	switch g.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	default:
		return nil, usage(cmd, "--log-format %q: want %s", g.logFormat, oneOf(logFormats))
	}
}

// client returns a client of the instance in the run folder.
func (g *globals) client() *httpapi.Client {
	return httpapi.NewClient(instance.ControlSocket(g.runDir))
}

// servicesIfRunning returns the services of the instance; none if it does not run.
func (g *globals) servicesIfRunning(ctx context.Context) ([]status.Status, error) {
	c := g.client()
	defer c.Close()
	services, err := c.Status(ctx)
	if errors.Is(err, httpapi.ErrNotRunning) {
		return nil, nil
	}
	return services, err
}

// place is this machine, for the commands that use the API of its instance.
func (g *globals) place() *commands.Place {
	return &commands.Place{
		Connect: func(_ *cobra.Command, names ...string) (*httpapi.Client, []string, error) {
			return g.client(), names, nil
		},
		Move: commands.MoveHere,
		Log:  func(cmd *cobra.Command) (*slog.Logger, error) { return g.logger(cmd, os.Stderr) },
	}
}
