// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

// latestPause is how much newer the time of a service's last request must be to be a change by itself.
const latestPause = 10 * time.Second

// glance is what of a service's Status is compared to tell whether it changed.
type glance struct {
	state                      lifecycle.State
	message, image             string
	serving, desired, replicas int
	wake                       uint64
	result                     lifecycle.Result
	phases                     int
	latest                     monotime.Time
}

// look tells those who wait for changes if there is one.
func (c *Controller) look(s *service) {
	g := glance{
		state: s.machine.State(), message: s.machine.Message(), image: s.imageErr,
		serving: s.machine.Serving(), desired: s.machine.Desired(), latest: s.told.latest,
	}
	for _, p := range s.pods {
		if p.runs() {
			g.replicas++
		}
	}
	if s.wake != nil {
		g.wake, g.result, g.phases = s.wake.Number, s.wake.Result, len(s.wake.Phases)
	}
	if s.last.Sub(s.told.latest) >= latestPause || s.told.latest == 0 {
		g.latest = s.last
	}
	if g != s.told {
		s.told = g
		c.changed.add(s.key)
	}
}

// changedSet collects the services whose Status changed, each once however often it did.
type changedSet struct {
	mu   sync.Mutex
	keys map[runtime.Key]bool
	more chan struct{} // has an element while keys are there
}

func newChangedSet() *changedSet {
	return &changedSet{keys: map[runtime.Key]bool{}, more: make(chan struct{}, 1)}
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

func (c *changedSet) take() []runtime.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(c.keys), compareKeys)
	clear(c.keys)
	return keys
}

func compareKeys(a, b runtime.Key) int { return strings.Compare(string(a), string(b)) }

// Changed waits until the Status of a service has changed since the last call, and returns which ones, each once: also
// one that is gone. A newer time of the last request alone counts as a change every latestPause. There is one set:
// who calls takes.
func (c *Controller) Changed(ctx context.Context) ([]runtime.Key, error) {
	for {
		select {
		case <-c.changed.more:
			if keys := c.changed.take(); len(keys) > 0 {
				return keys, nil
			}
		case <-c.done:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// StatusOf returns one service, and whether there is such a one.
func (c *Controller) StatusOf(key runtime.Key) (st Status, ok bool) {
	c.call(func() {
		if s := c.services[key]; s != nil {
			st, ok = s.status(), true
			st.NoDaemon = c.alone
		}
	})
	return st, ok
}
