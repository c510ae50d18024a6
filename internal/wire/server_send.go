// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Send queues a message to the peer with this ID and does not block. A reliable message (all except Stats, Usage and
// Loads) is repeated until it is acknowledged or the session ends. Errors are ErrPeerGone, ErrQueueFull, or that a
// field of the message is outside its limits.
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

// SendThen is Send for reliable messages, with a callback: then is called exactly once, with nil when the peer's
// Receive handler has returned, or with ErrPeerGone if the session ended first. In the latter case it is unknown
// whether the message was handled, and Left has not been called yet. then runs on a goroutine of the server and must
// return quickly. If SendThen returns an error, then is not called.
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

// SendWait sends a reliable message and returns when the peer's Receive handler has returned. Errors are those of
// SendThen and of ctx. After ErrPeerGone it is unknown whether the message was handled.
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

// SendAll sends a reliable message to every peer for which Joined has been called. then is optional; it is called once,
// when every peer has handled the message or is gone, with the peers that were gone first. It may be called before
// SendAll returns, otherwise runs on a goroutine of the server, and must return quickly. A peer whose queue is full is
// disconnected. The only error is that a field of the message is outside its limits; then is not called in this case.
func (s *Server) SendAll(m Message, then func(missed []Peer)) error {
	data, err := encodeAnswered(m)
	if err != nil {
		return err
	}
	peers := slices.DeleteFunc(s.allPeers(), func(p *peer) bool { return !p.joined.Load() })
	a := &answers{awaited: len(peers) + 1, then: then}
	for _, p := range peers {
		var done func(error)
		if then != nil {
			done = func(err error) { a.add(&p.Peer, err) }
		}
		if err := p.session.send(done, true, data); err != nil {
			if errors.Is(err, ErrQueueFull) {
				s.disconnect(p)
			}
			a.add(&p.Peer, err)
		}
	}
	a.add(nil, nil)
	return nil
}

// answers collects the answers of several peers to one message.
type answers struct {
	mu      sync.Mutex
	awaited int
	missed  []Peer
	then    func([]Peer)
}

// add counts the answer of p, and calls then after the last one. err is not nil if p was gone.
func (a *answers) add(p *Peer, err error) {
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

// encodeToClient encodes a message that callers of the server may send.
func encodeToClient(m Message) ([]byte, error) {
	if m.Type() == TypeSync {
		return nil, fmt.Errorf("wire: %v is sent by SetServices and UpdateServices only", m.Type())
	}
	return encode(m)
}

// encodeAnswered encodes a message that the peer acknowledges.
func encodeAnswered(m Message) ([]byte, error) {
	if !reliable(m.Type()) {
		return nil, fmt.Errorf("wire: %v is not acknowledged: use Send", m.Type())
	}
	return encodeToClient(m)
}

// Encoded is a reliable message as it is sent. Peers may share it, so that a message to many is encoded once.
type Encoded struct{ data []byte }

// Encode encodes a reliable message for SendBatch. The error is that a field of the message is outside its limits.
func Encode(m Message) (Encoded, error) {
	data, err := encodeAnswered(m)
	return Encoded{data}, err
}

// Size returns the length of the encoding in bytes.
func (e Encoded) Size() int { return len(e.data) }

// SendBatch sends messages in this order, with as many in a datagram as fit. then is optional, and called exactly once:
// with nil when the peer's Receive handler has returned from the last one, or with ErrPeerGone if the session ended
// first. It runs on a goroutine of the server and must return quickly. Errors are ErrPeerGone and ErrQueueFull; then is
// not called in this case, and no message was sent.
func (s *Server) SendBatch(peerID uint64, batch []Encoded, then func(error)) error {
	p, err := s.peer(peerID)
	if err != nil {
		return err
	}
	messages := make([][]byte, len(batch))
	for i, e := range batch {
		messages[i] = e.data
	}
	return p.session.send(then, true, messages...)
}
