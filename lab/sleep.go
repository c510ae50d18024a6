// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"time"
)

// Sleep waits for a time, or until ctx ends; then it returns the context's error.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
