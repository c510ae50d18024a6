// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"log/slog"
	"sync"
)

// acks tracks which version of the pods the connected Envoys have.
type acks struct {
	log *slog.Logger

	mu       sync.Mutex
	expected uint64 // version of the latest pods
	sessions map[*session]uint64
	changed  chan struct{} // closed and replaced when one of the above changes
}

func newAcks(log *slog.Logger) acks {
	return acks{log: log, sessions: map[*session]uint64{}, changed: make(chan struct{})}
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

// end forgets an Envoy that is gone.
func (a *acks) end(s *session) { a.update(func() { delete(a.sessions, s) }) }

// await waits until all connected Envoys have the present version of the pods.
func (a *acks) await(ctx context.Context) error {
	a.mu.Lock()
	want := a.expected
	for {
		behind := false
		for _, has := range a.sessions {
			behind = behind || has < want
		}
		changed := a.changed
		a.mu.Unlock()
		if !behind {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
		a.mu.Lock()
	}
}
