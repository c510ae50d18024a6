// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"log/slog"
)

// quiet lowers the level of what controller-runtime logs.
type quiet struct{ slog.Handler }

// Enabled implements slog.Handler: what the library logs as info is debug here.
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
		rec.Level = slog.LevelWarn // it is retried
	}
	return q.Handler.Handle(ctx, rec)
}
