// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
)

// acks tracks which version of the pods the connected Envoys have, and when their threads have followed.
type acks struct {
	log *slog.Logger

	mu       sync.Mutex
	expected uint64               // version of the latest pods
	held     bool                 // pods are kept back until routes are acknowledged
	envoys   map[*acked]bool      // those that have acknowledged pods
	flushes  map[netip.Addr]flush // the latest report of statistics, by Envoy
	changed  chan struct{}        // closed and replaced when one of the above changes
}

// acked is what a connected Envoy has acknowledged.
type acked struct {
	version uint64 // of the pods; guarded by the mu of acks
}

// flush is a report of statistics.
type flush struct {
	n  uint64 // number of reports so far
	at int64  // its time stamp
}

// flushesOfThreads is the number of reports after which Envoy's threads have followed an acknowledged change. Before
// each report, the main thread has every other thread do something, and waits for that; threads do what it asks in
// order. The first report may have begun before the change, and the second one begins after the end of the first.
const flushesOfThreads = 2

func newAcks(log *slog.Logger) acks {
	return acks{
		log: log, envoys: map[*acked]bool{}, flushes: map[netip.Addr]flush{}, changed: make(chan struct{}),
	}
}

// update changes the state and wakes those that wait.
func (a *acks) update(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	close(a.changed)
	a.changed = make(chan struct{})
}

// expect records a new version of the pods, which is about to be sent.
func (a *acks) expect(version uint64) { a.update(func() { a.expected = version }) }

// acknowledged records that an Envoy has a version of the pods.
func (a *acks) acknowledged(by *acked, version uint64) {
	a.update(func() { by.version, a.envoys[by] = max(by.version, version), true })
}

// hold records whether a newer version of the pods follows.
func (a *acks) hold(held bool) { a.update(func() { a.held = held }) }

// flushed records a part of a report of statistics. All parts of a report have the same time stamp.
func (a *acks) flushed(from netip.Addr, at int64) {
	a.update(func() {
		if f := a.flushes[from]; f.n == 0 || f.at != at {
			a.flushes[from] = flush{f.n + 1, at}
		}
	})
}

// awaitThreads waits until the threads of Envoys have followed what these had acknowledged before. connected returns
// the addresses of those that still run.
func (a *acks) awaitThreads(ctx context.Context, connected func() []netip.Addr) error {
	goals := map[netip.Addr]uint64{}
	at := connected()
	a.mu.Lock()
	for _, envoy := range at {
		goals[envoy] = a.flushes[envoy].n + flushesOfThreads
	}
	a.mu.Unlock()
	return a.until(ctx, func() bool {
		still := connected() // takes a lock that is always taken before a.mu
		a.mu.Lock()
		defer a.mu.Unlock()
		return !slices.ContainsFunc(still, func(at netip.Addr) bool { return a.flushes[at].n < goals[at] })
	})
}

// end forgets an Envoy that is gone.
func (a *acks) end(by *acked) { a.update(func() { delete(a.envoys, by) }) }

// await waits until all connected Envoys have the present version of the pods.
func (a *acks) await(ctx context.Context) error {
	return a.until(ctx, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for has := range a.envoys {
			if has.version < a.expected {
				return false
			}
		}
		return !a.held
	})
}

// until waits until done, which is called again after each change, without a.mu.
func (a *acks) until(ctx context.Context, done func() bool) error {
	for {
		a.mu.Lock()
		changed := a.changed
		a.mu.Unlock()
		if done() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
