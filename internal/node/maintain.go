// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/monotime"
)

const (
	statsInterval = time.Second     // between two readings of the pods' counters
	sweepInterval = 5 * time.Second // between two sweeps of the flow table
)

// maintain reports counters and idle services, and sweeps the flow table, until ctx ends. It sleeps while there is
// neither a pod nor a flow.
func (d *daemon) maintain(ctx context.Context) {
	ticker := time.NewTicker(statsInterval)
	defer ticker.Stop()
	flows, swept := uint32(1), time.Time{} // an earlier daemon may have left flows
	room := float64(d.gate.MaxFlows())
	for {
		d.mu.Lock()
		pods := d.pods
		d.mu.Unlock()
		if pods == 0 && flows == 0 {
			ticker.Stop()
			select {
			case <-ctx.Done():
				return
			case <-d.podAdded:
				ticker.Reset(statsInterval)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		d.sendStats(monotime.Now())
		d.sendUsage(ctx)
		d.removeUnlisted(monotime.Now())
		if time.Since(swept) >= sweepInterval {
			swept = time.Now()
			s, err := d.gate.Sweep(gate.AgesAt(float64(flows) / room))
			if err != nil {
				d.log.Error("cannot sweep the flow table", "error", err)
			}
			flows = s.Flows
			if s.Fixed > 0 {
				d.log.Debug("open flow counts corrected", "pods", s.Fixed)
			}
		}
	}
}
