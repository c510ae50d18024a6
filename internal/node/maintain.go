// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// statsInterval is the time between two readings of the pods' counters.
const statsInterval = time.Second

// maintain reports counters, idle services and scarce resources, memory included, and sweeps the flow table, until
// ctx ends. It sleeps while there is no pod, no flow, nothing parked and nothing scarce, and looks only every
// idleAgain while all pods are frozen.
func (d *daemon) maintain(ctx context.Context) {
	ticker := time.NewTicker(statsInterval)
	defer ticker.Stop()
	sweeps := sweeper{d: d, flows: 1} // an earlier daemon may have left flows
	again := false
	for {
		d.mu.Lock()
		pods := d.pods
		d.mu.Unlock()
		resting := false
		if !again && pods == 0 && sweeps.flows == 0 {
			ticker.Stop()
			select {
			case <-ctx.Done():
				return
			case <-d.maintenance:
			}
			ticker.Reset(statsInterval)
		} else if resting = !again && d.rests(pods); resting {
			ticker.Reset(idleAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-d.whileResting(resting):
			resting = false
		}
		ticker.Reset(statsInterval)
		d.sendStats(monotime.Now())
		d.sendAnswers(monotime.Now())
		d.sendUsage(ctx)
		d.removeUnlisted(monotime.Now())
		sweeps.run(resting)
		again = d.checkScarce(time.Now())
		again = d.checkMemory() || again
	}
}

// rests reports whether this node has pods and all of them are frozen.
func (d *daemon) rests(pods int) bool {
	if pods == 0 || d.freezing.number() < pods {
		return false
	}
	for _, s := range d.allServices() {
		s.mu.Lock()
		moves := len(s.pods) > 0 && !d.standsStill(s)
		s.mu.Unlock()
		if moves {
			return false
		}
	}
	return true
}

// whileResting returns the channel that ends a rest; nil if there is none.
func (d *daemon) whileResting(resting bool) <-chan struct{} {
	if resting {
		return d.maintenance
	}
	return nil
}
