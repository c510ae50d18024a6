// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// PollInterval is the time between two attempts of Poll.
const PollInterval = 500 * time.Microsecond

// Polled is the outcome of Poll.
type Polled struct {
	// Dialled is when the attempt that was not refused began.
	Dialled monotime.Time
	// Timing is the timing of this attempt.
	Timing Timing
	// Attempts counts all of them.
	Attempts int
	// Err is why there was no answer; nil if there was one.
	Err error
}

// Poll repeats a request every PollInterval until the connection is not refused. It is how the floor is measured.
func Poll(ctx context.Context, dial DialFunc, address netip.AddrPort) Polled {
	ticks := time.NewTicker(PollInterval)
	defer ticks.Stop()
	for p := (Polled{}); ; {
		p.Attempts++
		p.Dialled = monotime.Now()
		p.Timing, p.Err = Request(ctx, dial, address.String(), address.String())
		if !errors.Is(p.Err, syscall.ECONNREFUSED) {
			return p
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			p.Err = fmt.Errorf("nothing listens at %s: %w", address, ctx.Err())
			return p
		}
	}
}
