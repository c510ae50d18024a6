// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Send queues a message to a peer (by ID) and returns at once; a reliable message (all but Stats, Usage and Loads) is repeated
// until it is acknowledged or the peer is gone. Errors: ErrPeerGone, ErrQueueFull, or what of the message is
// outside its limits.
func (s *Server) Send(peerID uint64, m Message) error {
	data, err := encodeToClient(m)
	if err != nil {
		return err
	}
	p, err := s.peer(peerID)
	if err != nil {
		return err
	}
	return p.session.send(nil, reliable(m.Type()), data)
}

// SendThen is Send, and calls then exactly once: with nil when the peer's Receive handler has returned, with ErrPeerGone
// if the session ended first, before Left is called; it is not known then whether the message was handled. It is
// called on a goroutine of the server and must be quick. If SendThen returns an error then is not called. What is not
// acknowledged is refused.
func (s *Server) SendThen(peerID uint64, m Message, then func(error)) error {
	data, err := encodeAnswered(m)
	if err != nil {
		return err
	}
	p, err := s.peer(peerID)
	if err != nil {
		return err
	}
	return p.session.send(then, true, data)
}

// SendWait sends and waits until the peer's Receive handler has returned. Errors: those of SendThen, and ctx's;
// ErrPeerGone means that it is not known whether the message was handled.
func (s *Server) SendWait(ctx context.Context, peerID uint64, m Message) error {
	done := make(chan error, 1)
	if err := s.SendThen(peerID, m, func(err error) { done <- err }); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wire: %v: %w", m.Type(), ctx.Err())
	}
}

// SendAll sends a reliable message to every peer that Joined was called for. then, if set, is called once, when each of them
// has handled it or is gone; missed are those that were gone first. It is called on a goroutine of the server, or
// before SendAll returns, and must be quick. A peer whose queue is full is let go. Errors: what of the message is
// outside its limits; then is not called.
func (s *Server) SendAll(m Message, then func(missed []Peer)) error {
	data, err := encodeAnswered(m)
	if err != nil {
		return err
	}
	s.mu.Lock()
	peers := make([]*peer, 0, len(s.peers))
	for _, p := range s.peers {
		if p.joined.Load() {
			peers = append(peers, p)
		}
	}
	s.mu.Unlock()
	a := &answers{awaited: len(peers) + 1, then: then}
	for _, p := range peers {
		var done func(error)
		if then != nil {
			done = func(err error) { a.came(&p.Peer, err) }
		}
		if err := p.session.send(done, true, data); err != nil {
			if errors.Is(err, ErrQueueFull) {
				s.letGo(p)
			}
			a.came(&p.Peer, err)
		}
	}
	a.came(nil, nil)
	return nil
}

// answers gathers those of several peers.
type answers struct {
	mu      sync.Mutex
	awaited int
	missed  []Peer
	then    func([]Peer)
}

// came takes one answer, and calls then after the last.
func (a *answers) came(p *Peer, err error) {
	a.mu.Lock()
	if err != nil {
		a.missed = append(a.missed, *p)
	}
	a.awaited--
	last := a.awaited == 0
	a.mu.Unlock()
	if last && a.then != nil {
		a.then(a.missed)
	}
}

func (s *Server) peer(id uint64) (*peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[id]; p != nil {
		return p, nil
	}
	return nil, ErrPeerGone
}

func encodeToClient(m Message) ([]byte, error) {
	if m.Type() == TypeSync {
		return nil, fmt.Errorf("wire: %v is sent by SetServices and UpdateServices only", m.Type())
	}
	return encode(m)
}

// encodeAnswered refuses what no peer answers.
func encodeAnswered(m Message) ([]byte, error) {
	if !reliable(m.Type()) {
		return nil, fmt.Errorf("wire: %v is not acknowledged: use Send", m.Type())
	}
	return encodeToClient(m)
}
