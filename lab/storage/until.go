// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"time"

	"wangell.loutres.me/lab"
)

// until repeats f until it succeeds, for at most three minutes: the machine may be slow.
func until(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	return untilAsLongAs(ctx, f)
}

// untilAsLongAs repeats f until it succeeds or ctx ends, and returns its last error.
func untilAsLongAs(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil || lab.Sleep(ctx, 300*time.Millisecond) != nil {
			return err
		}
	}
}
