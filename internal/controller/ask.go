// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
)

// ask delivers an event to a service's machine, and waits until ready. event is called once, on the loop; it may
// return nil. An error from ready or ctx undoes nothing.
func (c *Controller) ask(ctx context.Context, key runtime.Key, event func(*service) lifecycle.Event,
	ready func(*service) (bool, error)) error {
	w := &waiter{ready, make(chan error, 1)}
	var err error
	if !c.loop.call(func() {
		var s *service
		if s, err = c.engine.living(key); err != nil {
			return
		}
		ev := event(s)
		s.waiters = append(s.waiters, w)
		if ev != nil {
			c.engine.step(s, ev)
		}
		s.checkWaiters()
	}) {
		return ErrClosed
	}
	if err != nil {
		return err
	}
	select {
	case err := <-w.done:
		return err
	case <-c.loop.done:
		return ErrClosed
	case <-ctx.Done():
		c.loop.call(func() {
			if s := c.engine.table.services[key]; s != nil {
				s.waiters = slices.DeleteFunc(s.waiters, func(o *waiter) bool { return o == w })
			}
		})
		return fmt.Errorf("service %s: not there yet: %w", key, ctx.Err())
	}
}

// Wake wakes a service, and returns once it serves. Its idle timeout begins then, as if a client had come. A service
// that failed is tried again at once. If its wake fails, or a user puts it to sleep meanwhile, the error says so.
func (c *Controller) Wake(ctx context.Context, key runtime.Key) error {
	return c.ask(ctx, key, func(s *service) lifecycle.Event {
		if s.machine.Serving() > 0 && (s.machine.State() == lifecycle.Warm || s.machine.State() == lifecycle.Frozen) {
			return lifecycle.ThawAsked{}
		}
		return lifecycle.Scale{N: max(s.machine.Desired(), 1), Why: "asked for by a user"}
	}, func(s *service) (bool, error) {
		switch s.machine.State() {
		case lifecycle.Failed:
			return false, fmt.Errorf("service %s: %s", s.key, s.machine.Message())
		case lifecycle.Cold:
			return false, fmt.Errorf("service %s was put to sleep, or its pod ended, before it served: "+
				"see 'wangell why'", s.key)
		}
		return s.machine.State() == lifecycle.Warm && s.machine.Serving() > 0, nil
	})
}

// Hold wakes a service, and keeps it awake while it is idle until release is called. Other reasons to end its pods
// remain. release may be called several times.
func (c *Controller) Hold(ctx context.Context, key runtime.Key) (release func(), err error) {
	add := func(n int) bool {
		return c.loop.call(func() {
			if c.engine.held[key] += n; c.engine.held[key] <= 0 {
				delete(c.engine.held, key)
			}
		})
	}
	if !add(1) {
		return nil, ErrClosed
	}
	release = sync.OnceFunc(func() { add(-1) })
	if err := c.Wake(ctx, key); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// Restart replaces the pods of a service, one at a time: each new pod serves before an old one is drained, unless its
// updateStrategy is Recreate, whose clients wait meanwhile. It returns the number of replaced pods once none of them
// gets new connections and the new ones serve; the old ones end with their connections. For a service without pods it
// is 0. If a new pod fails, the old ones continue to serve, and the error has the reason. In a cluster, the pods belong
// to a Deployment, which restarts them.
func (c *Controller) Restart(ctx context.Context, key runtime.Key) (replaced int, err error) {
	if c.engine.cluster != nil {
		return 0, errors.New("in a cluster, kubectl rollout restart does this")
	}
	var old []lifecycle.Ref
	err = c.ask(ctx, key, func(s *service) lifecycle.Event {
		for _, r := range s.machine.Pods() {
			if s.machine.PodState(r) <= lifecycle.PodServing {
				old = append(old, r)
			}
		}
		if len(old) == 0 {
			return nil
		}
		return lifecycle.RestartAsked{}
	}, func(s *service) (bool, error) {
		switch {
		case len(old) == 0:
			return true, nil
		case s.machine.State() == lifecycle.Failed, s.machine.UpdateFailed():
			return false, fmt.Errorf("service %s: %s", s.key, s.machine.Message())
		case slices.ContainsFunc(old, func(r lifecycle.Ref) bool { return s.machine.PodState(r) <= lifecycle.PodServing }):
			return false, nil
		}
		return s.machine.Serving() >= s.machine.Desired(), nil
	})
	return len(old), err
}
