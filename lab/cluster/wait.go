// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"time"
)

const (
	// ZeroTimeout is how long pods may take to disappear.
	ZeroTimeout = 4 * time.Minute
	// ReadyTimeout is how long a new pod may take to be Ready.
	ReadyTimeout = time.Minute
	// pollInterval is the time between two API requests, outside of measurements.
	pollInterval = 200 * time.Millisecond
)

// Until repeats f until it returns nil. When time is up, the error is f's last one.
func Until(ctx context.Context, timeout time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return fmt.Errorf("waited for %v: %w", timeout, err)
		}
	}
}
