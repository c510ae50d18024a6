// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"wangell.loutres.me/internal/monotime"
)

// statsInterval is the time between two readings of the pods' counters.
const statsInterval = time.Second

// maintain reports counters, idle services and what is scarce, and sweeps the flow table, until ctx ends. It sleeps
// while there is neither a pod nor a flow, and nothing is scarce or parked.
func (d *daemon) maintain(ctx context.Context) {
	ticker := time.NewTicker(statsInterval)
	defer ticker.Stop()
	sweeps := sweeper{d: d, flows: 1} // an earlier daemon may have left flows
	again := false
	for {
		d.mu.Lock()
		pods := d.pods
		d.mu.Unlock()
		if pods == 0 && sweeps.flows == 0 && !again {
			ticker.Stop()
			select {
			case <-ctx.Done():
				return
			case <-d.maintenance:
				ticker.Reset(statsInterval)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		d.sendStats(monotime.Now())
		d.sendAnswers(monotime.Now())
		d.sendUsage(ctx)
		d.removeUnlisted(monotime.Now())
		sweeps.run()
		again = d.checkScarce(time.Now())
	}
}
