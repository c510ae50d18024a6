// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"time"
)

// NewServer starts a server on ServerConfig.Conn.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Conn == nil {
		return nil, errors.New("wire: a server needs a socket (ServerConfig.Conn)")
	}
	cfg.Log, cfg.Keepalive = logOrDiscard(cfg.Log), keepaliveOrDefault(cfg.Keepalive)
	var err error
	if cfg.environment, err = cfg.environment.withDefaults(); err != nil {
		return nil, err
	}
	_ = cfg.Conn.SetReadBuffer(socketBuffer)
	s := &Server{
		cfg: cfg, instance: uint64(time.Now().UnixNano()),
		peers: map[uint64]*peer{}, nodes: map[string]*peer{},
		out: newBatchWriter(cfg.Conn), admission: make(chan struct{}, maxWholeTables),
		progress: newProgress(),
	}
	s.drops = dropLog{counters: &s.counters, log: cfg.Log}
	// Versions above the instance are unique to this server, so a daemon never mistakes another server's table for its
	// own, and gets the whole table from each new server.
	s.table.epoch = s.instance
	s.waits.Store(cfg.AwaitTable)
	s.group.Go(s.read)
	return s, nil
}

// Counters returns the totals since the start of the server.
func (s *Server) Counters() Counters { return s.counters.snapshot() }

// Close says goodbye to every peer, calls Left for each, stops the server, waits for its goroutines and closes the
// socket. Messages that were not acknowledged are lost. Handlers must not call it.
func (s *Server) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	for _, p := range s.allPeers() {
		p.session.end(ErrClosed, goodbyeClosed)
	}
	err := s.cfg.Conn.Close()
	s.group.Wait()
	return err
}
