// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/runtime"
)

// latestPause is how much newer the time of a service's last packet must be to count as a change on its own.
const latestPause = 10 * time.Second

// glance returns the part of the service's Status that is compared.
func (s *service) glance() glance {
	g := glance{
		state: s.machine.State(), message: s.message(), image: cmp.Or(s.imageErr, s.unready()), history: s.foresight.saved,
		pressure: s.pressure(),
		images:   s.images.Status, lazy: s.images.Lazy, digests: s.images.Digests.Changes,
		serving: s.machine.Serving(), desired: s.machine.Desired(), replicas: s.replicas(),
		lastPacket: s.reported.lastPacket,
	}
	if w := s.lastWake; w != nil {
		g.wake, g.result, g.phases = w.Number, w.Result, len(w.Phases)
	}
	if s.lastPacket.Sub(s.reported.lastPacket) >= latestPause || s.reported.lastPacket == 0 {
		g.lastPacket = s.lastPacket
	}
	return g
}

// changedSet collects the services whose Status has changed, each once.
type changedSet struct {
	mu   sync.Mutex
	keys map[runtime.Key]bool
	more chan struct{} // has an element while there are keys
}

func newChangedSet() *changedSet {
	return &changedSet{keys: map[runtime.Key]bool{}, more: make(chan struct{}, 1)}
}

// check adds a service if its Status has changed.
func (c *changedSet) check(s *service) {
	if g := s.glance(); g != s.reported {
		s.reported = g
		c.add(s.key)
	}
}

func (c *changedSet) add(k runtime.Key) {
	c.mu.Lock()
	c.keys[k] = true
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

func (c *changedSet) addAll(services map[runtime.Key]*service) {
	for k := range services {
		c.add(k)
	}
}

// take waits until there are keys, and removes and returns them. It returns ErrClosed once done is closed.
func (c *changedSet) take(ctx context.Context, done <-chan struct{}) ([]runtime.Key, error) {
	for {
		select {
		case <-c.more:
			c.mu.Lock()
			keys := slices.SortedFunc(maps.Keys(c.keys), compareKeys)
			clear(c.keys)
			c.mu.Unlock()
			if len(keys) > 0 {
				return keys, nil
			}
		case <-done:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
