// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"wangell.loutres.me/internal/base/tasks"
)

// maxPeers limits the sessions of a server.
const maxPeers = 4096

// Peer describes a connected daemon.
type Peer struct {
	// Node is the node name from the daemon's HELLO, 1 to 253 bytes. The daemon has the key of that node.
	Node string
	// ID is unique among the sessions of a server.
	ID uint64
	// Addr is where the daemon's datagrams come from. It has proved that it receives what is sent there.
	Addr netip.AddrPort
	// SameHost reports that the daemon and the controller run on the same kernel (same boot ID), so that their
	// monotonic times are comparable. Otherwise the times in received messages were converted to the controller's
	// clock.
	SameHost bool
	// Restarting is set in calls of Left only: the daemon announced that it will be restarted. Its node's gate keeps
	// running meanwhile.
	Restarting bool
}

// ServerConfig configures a Server. The handlers run on goroutines of the server, for each peer one call at a
// time, in the order Joined, Receive…, Left. They must not block on the network. They may call every method of the
// server except Close.
type ServerConfig struct {
	// Conn is the socket. The server owns it and closes it. If it is from Listen, datagrams of strangers have a second
	// one, so that a flood of them does not displace those of sessions.
	Conn *net.UDPConn
	// Key is the master key, from which those of the nodes are derived.
	Key Key
	// Log is optional.
	Log *slog.Logger
	// Keepalive is the interval of the clients' keepalives; a client is gone after five of them without a datagram.
	// Both ends must have the same value. The default is DefaultKeepalive.
	Keepalive time.Duration
	// AwaitTable drops HELLOs before the first call of SetServices, so that daemons stay with the previous server
	// until then.
	AwaitTable bool
	// Joined is called when a daemon has connected. The table of services has been sent before, so messages sent from
	// then on arrive after it. If the daemon had a session before, Left has been called for that. Optional.
	Joined func(Peer)
	// Left is called when a daemon's session has ended. Optional.
	Left func(Peer)
	// Receive is called once for every message, in the order in which the peer sent them. Unreliable messages (Stats,
	// Usage, Loads) may be lost or arrive early or late. Optional.
	Receive func(Peer, Message)

	environment
}

// Server is the controller's end. Its methods may be called from several goroutines at once.
//
// Its methods: server.go has start, stop and peers, server_receive.go reading and handshakes, server_send.go messages,
// and server_table.go the table of services.
type Server struct {
	cfg      ServerConfig
	instance uint64 // start of the server in Unix nanoseconds
	counters counters
	group    tasks.Group
	hellos   *helloKeys
	out      *batchWriter
	progress *progress    // of the reader of sessions
	mark     uint32       // the first half of the IDs of sessions
	apart    *net.UDPConn // for datagrams that are of no session; nil: all arrive at cfg.Conn

	mu      sync.Mutex // never held while a handler is called
	peers   map[uint64]*peer
	nodes   map[string]*peer
	pending pendings
	closed  bool

	admission chan struct{} // has an element for each peer that receives its first table

	waits atomic.Bool // there is no table yet, and HELLOs are dropped until there is one

	tableMu sync.Mutex // taken before mu and before a session's mu
	table   table
}

// peer is a session with the state of its client's table.
type peer struct {
	Peer
	session  *session
	addr     netip.AddrPort
	instance uint64
	before   *peer       // older session of the same node that this one replaces
	joined   atomic.Bool // Joined is being called or has been called

	// queued counts the steps of the table that were sent, handled those that the peer has applied.
	queued, handled atomic.Uint64
	// report is the newest state of its table that the peer reported while no step was in flight.
	report atomic.Pointer[tableReport]

	admitted bool // used by the session's goroutine only: it has waited for its first table

	// Guarded by tableMu.
	release func()     // called once the peer has the table of the next step; nil if nothing waits for that
	known   bool       // the peer has reported its table
	keeps   bool       // its table is from before the session, and it understands a step that only gives it a version
	table   tableState // state of the peer's table once it has applied all steps
}

// tableReport is the state of a client's table after a number of steps.
type tableReport struct {
	state tableState
	keeps bool
	steps uint64
}

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
		progress: newProgress(), hellos: newHelloKeys(cfg.Key), mark: newMark(),
	}
	if s.apart, err = setApart(cfg.Conn, s.mark); err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	// Versions above the instance are unique to this server, so a daemon never mistakes another server's table for its
	// own, and gets the whole table from each new server.
	s.table.epoch = s.instance
	s.waits.Store(cfg.AwaitTable)
	s.group.Go(func() { s.read(cfg.Conn, s.progress, s.receive, noRest) })
	if s.apart != nil {
		_ = s.apart.SetReadBuffer(socketBuffer)
		s.group.Go(func() { s.read(s.apart, newProgress(), s.receiveStranger, restOfStrangers) })
	}
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
	if s.apart != nil {
		err = errors.Join(err, s.apart.Close())
	}
	s.group.Stop()
	return err
}

// Peers returns the connected daemons, in no particular order.
func (s *Server) Peers() []Peer {
	peers := s.allPeers()
	out := make([]Peer, len(peers))
	for i, p := range peers {
		out[i] = p.Peer
	}
	return out
}

// allPeers returns all peers, in no particular order.
func (s *Server) allPeers() []*peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*peer, 0, len(s.peers))
	for _, p := range s.peers {
		out = append(out, p)
	}
	return out
}

// peer returns a peer by its ID, or ErrPeerGone.
func (s *Server) peer(id uint64) (*peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[id]; p != nil {
		return p, nil
	}
	return nil, ErrPeerGone
}

// forget removes a peer whose session has ended.
func (s *Server) forget(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers, p.ID)
	if s.nodes[p.Node] == p {
		delete(s.nodes, p.Node)
	}
}

// Disconnect ends the session of a peer, which then connects again. It returns at once; Left is called later.
func (s *Server) Disconnect(peerID uint64) {
	if p, err := s.peer(peerID); err == nil {
		s.disconnect(p)
	}
}

// disconnect ends the session of a peer that does not keep up. The peer reconnects and gets the present state. This
// runs on a goroutine of its own because the callbacks of unanswered messages may take locks that the caller holds.
func (s *Server) disconnect(p *peer) {
	s.group.Go(func() { p.session.end(errSlow, goodbyeClosed) })
}
