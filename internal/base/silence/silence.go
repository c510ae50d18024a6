// SPDX-License-Identifier: Apache-2.0

// Package silence keeps containerd's libraries from writing to standard error. Their errors contain everything that
// matters.
package silence

import (
	"context"
	"io"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
)

// Logger is a logger of containerd's libraries that logs nothing.
var Logger = func() *log.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}()

// In returns a context with which they log nothing.
func In(ctx context.Context) context.Context { return log.WithLogger(ctx, Logger) }
