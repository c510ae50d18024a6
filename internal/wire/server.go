// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"wangell.loutres.me/internal/monotime"
)

// maxPeers bounds the sessions of a server.
const maxPeers = 4096

// Peer is a daemon, as the server sees it.
type Peer struct {
	// Node is the name that the daemon gave in its HELLO, 1-253 bytes.
	Node string
	// ID is unique among the sessions of a server.
	ID uint64
	// SameHost: daemon and controller share a kernel (same boot ID), so monotonic times are
	// comparable as they are; otherwise times in received messages were shifted to the receiver's clock.
	SameHost bool
	// Staying is told to Left only: the daemon ends in order to be started again, and said so. Its node's gate
	// goes on meanwhile.
	Staying bool
}

// ServerConfig configures a Server. Handlers run on the server's goroutines, one call of a peer at a time,
// in the order Joined, Receive..., Left; they must not block on the network. A handler may call every method
// of the server but Close.
type ServerConfig struct {
	// Conn is the socket. The server owns it, and closes it in the end.
	Conn *net.UDPConn
	Key  Key
	// Log may be nil.
	Log *slog.Logger
	// Keepalive is how often a client is expected to be heard; after five times as long without a datagram
	// it is gone. Default: DefaultKeepalive. It must be the same at both ends.
	Keepalive time.Duration
	// Joined is called when a daemon's session is up, Left when it is gone. The table of services is already
	// on its way when Joined is called, so messages sent from then on come after it. A daemon that connects
	// anew first leaves, then joins with another ID.
	Joined func(Peer)
	Left   func(Peer)
	// Receive is called once per message, in spite of repeats, in the order of the peer's sends (but for
	// Stats, which may be lost or overtake).
	Receive func(Peer, Message)

	// Of this machine; tests play another one.
	boot bootID
	now  func() monotime.Time
}

// Server is the controller's end. Its methods may be called by several goroutines at once.
type Server struct {
	cfg      ServerConfig
	seals    handshakeSeals
	instance uint64
	counters counters
	group    sync.WaitGroup
	dropLog  time.Time // of the reader

	mu      sync.Mutex // never held while calling a handler
	peers   map[uint64]*peer
	nodes   map[string]*peer
	pending pendings
	closed  bool

	tableMu sync.Mutex // taken before mu and before a session's lock
	table   table
}

// peer is a session with what the server knows of its table.
type peer struct {
	Peer
	session  *session
	addr     netip.AddrPort
	instance uint64
	before   *peer       // session of the same node that this one replaces
	joined   atomic.Bool // Joined is being called, or was

	// queued counts the steps of the table that were sent, handled those that the peer has applied.
	queued, handled atomic.Uint64
	// report is the newest table state that the peer told while no step was on its way.
	report atomic.Pointer[tableReport]

	known bool       // under tableMu: has told its table
	table tableState // under tableMu: what it has once it has applied all steps
}

// tableReport is a client's word about its table, after so many steps.
type tableReport struct {
	state tableState
	steps uint64
}

// NewServer starts a server on a bound socket.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Conn == nil {
		return nil, errors.New("wire: a server needs a socket (ServerConfig.Conn)")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Keepalive <= 0 {
		cfg.Keepalive = DefaultKeepalive
	}
	if cfg.boot == (bootID{}) {
		var err error
		if cfg.boot, err = readBootID(); err != nil {
			return nil, err
		}
	}
	if cfg.now == nil {
		cfg.now = monotime.Now
	}
	// Best effort: the kernel grants what net.core.rmem_max allows, and what is lost is repeated.
	_ = cfg.Conn.SetReadBuffer(1 << 20)
	s := &Server{
		cfg: cfg, seals: newHandshakeSeals(cfg.Key), instance: uint64(time.Now().UnixNano()),
		peers: map[uint64]*peer{}, nodes: map[string]*peer{},
	}
	// No two servers give one version to two tables: a daemon gets the whole table from each new server.
	s.table.epoch = s.instance
	s.group.Go(s.read)
	return s, nil
}

// Counters returns the totals since the start.
func (s *Server) Counters() Counters { return s.counters.snapshot() }

// Peers returns the daemons that are there, in no order.
func (s *Server) Peers() []Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Peer, 0, len(s.peers))
	for _, p := range s.peers {
		out = append(out, p.Peer)
	}
	return out
}

// Close says goodbye to every peer, ends the server and its goroutines, and closes the socket. Messages
// that were not acknowledged are lost. Left is called for every peer. No handler may call it.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	peers := make([]*peer, 0, len(s.peers))
	for _, p := range s.peers {
		peers = append(peers, p)
	}
	s.mu.Unlock()
	for _, p := range peers {
		p.session.end(ErrClosed, goodbyeClosed)
	}
	err := s.cfg.Conn.Close()
	s.group.Wait()
	return err
}
