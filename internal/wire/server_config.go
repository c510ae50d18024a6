// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// maxPeers limits the sessions of a server.
const maxPeers = 4096

// Peer describes a connected daemon.
type Peer struct {
	// Node is the node name from the daemon's HELLO, 1 to 253 bytes. The daemon has the key of that node.
	Node string
	// ID is unique among the sessions of a server.
	ID uint64
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
	// Conn is the socket. The server owns it and closes it.
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
// Its methods are split by job, each file using those after it: server.go (start and stop), server_receive.go (reading
// and handshakes), server_send.go, server_table.go, server_peers.go.
type Server struct {
	cfg      ServerConfig
	instance uint64 // start of the server in Unix nanoseconds
	counters counters
	group    sync.WaitGroup
	drops    dropLog // of the reader
	out      *batchWriter
	progress *progress // of the reader

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
