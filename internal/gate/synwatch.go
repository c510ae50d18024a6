// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"sync/atomic"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// synSearch is the state of the search for SYNs that pods have not answered. It walks the rings of half-open flows,
// which the programs fill, from the oldest slot that may hold one.
type synSearch struct {
	next  [gateLimitRING_SHARDS]uint64 // position in each ring up to which the search is done
	until [gateLimitRING_SHARDS]uint64 // head of each ring one round ago: slots before it are completely written
	sent  int                          // SYNs sent in this round
	wake  chan struct{}                // receives a value when there are half-open flows again
}

// maxRetriedSYNs limits the SYNs sent to other pods in one round, which bounds the cost of a flood at a pod that does
// not answer. The rest waits for the next round.
const maxRetriedSYNs = 256

const ringShards = uint32(gateLimitRING_SHARDS)

// watchSYNs sends SYNs that are not answered in time to other pods, until done is closed. It sleeps while there are no
// half-open flows.
func (g *Gate) watchSYNs(done <-chan struct{}) {
	if g.cfg.SYNTimeout < 0 {
		return
	}
	tick := time.NewTicker(g.cfg.SYNTimeout / 4)
	defer tick.Stop()
	for {
		for g.retryUnanswered(monotime.Now()) {
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
		select {
		case <-done:
			return
		case <-g.synSearch.wake:
			tick.Reset(g.cfg.SYNTimeout / 4)
		}
	}
}

// retryUnanswered sends SYNs that were not answered in time to other pods. It reports whether others are pending. If
// not, the next SYN wakes watchSYNs.
func (g *Gate) retryUnanswered(now monotime.Time) bool {
	if g.scanRings(now) {
		return true
	}
	on := &g.watch.at(0).On
	atomic.StoreUint32(on, 0)
	// A SYN that arrived just before has sent no event.
	if !g.ringsMoved() {
		return false
	}
	atomic.StoreUint32(on, 1)
	return true
}

// ringsMoved reports whether there are flows that the search has not seen.
func (g *Gate) ringsMoved() bool {
	for shard := range ringShards {
		if atomic.LoadUint64(g.heads.at(shard)) != g.synSearch.next[shard] {
			return true
		}
	}
	return false
}

// scanRings continues the search in all rings, up to the SYNs that may still be answered in time. It reports whether
// there are such SYNs.
func (g *Gate) scanRings(now monotime.Time) bool {
	s, size := &g.synSearch, uint64(g.cfg.Sizes.Ring)
	left := false
	s.sent = 0
	for shard := range ringShards {
		head := atomic.LoadUint64(g.heads.at(shard))
		if head-s.next[shard] > size { // newer flows have taken the slots
			s.next[shard] = head - size
		}
		for s.next[shard] < s.until[shard] && g.scanSlot(shard, s.next[shard], now) {
			s.next[shard]++
		}
		s.until[shard] = head
		left = left || s.next[shard] != head
	}
	return left
}

// scanSlot examines one slot of a ring. It returns false if its SYN may still be answered in time.
func (g *Gate) scanSlot(shard uint32, pos uint64, now monotime.Time) bool {
	at := shard*g.cfg.Sizes.Ring + uint32(pos)&(g.cfg.Sizes.Ring-1)
	b, stamp := g.backups.at(at), uint32(pos)<<1+1 // the stamp of ring_claim_slot in bpf/flow.h
	if atomic.LoadUint32(&b.Stamp) != stamp {
		return true // answered, or gone
	}
	if now.Sub(monotime.Time(b.Sent)) < g.cfg.SYNTimeout || g.synSearch.sent == maxRetriedSYNs {
		return false
	}
	backup := *b
	syn := synOf(&backup, g.rings.at(at).Flow)
	if syn == nil || atomic.LoadUint32(&b.Stamp) != stamp {
		return true
	}
	g.synSearch.sent++
	if err := g.inject.send(g.inject.outer, frame(g.dev.innerMAC, make([]byte, 6), syn)); err != nil {
		g.log.Warn("cannot send an unanswered SYN to another pod", "error", err)
	}
	return true
}
