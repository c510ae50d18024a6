// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"log/slog"
)

// quiet passes on what controller-runtime has to say, but not its every step.
type quiet struct{ slog.Handler }

// Enabled implements slog.Handler: what the library calls info is what we call debug.
func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	if level == slog.LevelInfo {
		level = slog.LevelDebug
	}
	return q.Handler.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (q quiet) WithAttrs(a []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(a)} }

// WithGroup implements slog.Handler.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }

// Handle implements slog.Handler.
func (q quiet) Handle(ctx context.Context, rec slog.Record) error {
	switch {
	case rec.Level == slog.LevelInfo:
		rec.Level = slog.LevelDebug
	case rec.Level == slog.LevelError && rec.Message == "Reconciler error":
		rec.Level = slog.LevelWarn // it is tried again
	}
	return q.Handler.Handle(ctx, rec)
}
