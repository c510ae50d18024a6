// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// maxWaiting limits the messages that wait for a session.
const maxWaiting = 1024

// ClientConfig configures a Client. The handlers run on a goroutine of the client, one call at a time. They must not
// block on the network. They may call Send, but not Close or Leave.
type ClientConfig struct {
	// Server is the controller's address, host:port; SetServer changes it. The host is looked up for every attempt to
	// connect. The client waits while Server is empty.
	Server string
	// Key is the key of this node (Key.ForNode of the master key); SetKey changes it.
	Key Key
	// Node is the name of this node, 1 to 253 bytes. Of several clients with the same name, the newest one wins.
	Node string
	// Log is optional.
	Log *slog.Logger
	// Keepalive is the interval of keepalives; the session ends after five of them without an answer. Both ends must
	// have the same value. The default is DefaultKeepalive.
	Keepalive time.Duration
	// First are the messages that begin every session, before messages that waited for one.
	First []Message
	// Connected and Disconnected are called when a session with the server begins and ends; they are optional. The
	// server of a new session may be another one, so Connected must send it the present state.
	Connected, Disconnected func()
	// Unanswered is called when a server has not answered for as long as an attempt to connect takes. It may be away, or
	// derive another key for this node. Optional; it must return at once.
	Unanswered func()
	// Services is called when a step of the table of services is complete and its hash is right; it is optional. If
	// full is true, upserts is the whole table, and services that are not in it were removed.
	Services func(full bool, upserts []Service, removals []netip.AddrPort)
	// Kept is called instead of Services when the server, which has not sent the table that the client has, turns out to
	// have the very same one. Optional; without it, such a server sends the whole table.
	Kept func()
	// Receive is called once for every message other than Sync, in the order in which the server sent them.
	Receive func(Message)

	environment
}

// Client is a daemon's end. It reconnects by itself. Its methods may be called from several goroutines at once.
//
// Its methods are split by job, each file using those after it: client.go (for callers), client_connect.go (attempts),
// client_meeting.go (the next server, beside a session), client_handshake.go, client_session.go (reading),
// client_events.go (begin, messages and end of a session).
type Client struct {
	cfg      ClientConfig
	instance uint64 // start of the client in Unix nanoseconds
	counters counters
	group    sync.WaitGroup
	ctx      context.Context
	cancel   context.CancelFunc

	moved chan struct{} // holds one element if SetServer has changed the address

	// Used by the session's goroutine while there is one, otherwise by run.
	table  follower
	target string        // server of this attempt; written with mu
	pause  time.Duration // between the last two HELLOs; zero after a session
	failed int           // attempts since the last session that the server did not answer, or not confirm
	drops  dropLog

	mu      sync.Mutex
	first   [][]byte           // encodings of the messages that begin the next session
	server  string             // of the next attempt
	key     Key                // of the next handshake
	shaken  *session           // newest session after a handshake; the server may use it before it is current
	current *session           // session whose goroutine runs
	waiting [][]byte           // encoded reliable messages for the next session
	conn    net.Conn           // of this attempt
	dialing context.CancelFunc // of this attempt
	meeting context.CancelFunc // of the handshake with the next server; nil if there is none
	met     *greeting          // the next server's answer, for the next attempt
}

// encodeToServer encodes a message that clients may send.
func encodeToServer(m Message) ([]byte, error) {
	if m.Type() == TypeSync {
		return nil, fmt.Errorf("wire: %v is sent by servers only", m.Type())
	}
	return encode(m)
}

// greeting is a HELLO with the WELCOME that answers it.
type greeting struct {
	conn    *net.UDPConn
	key     Key
	hello   hello
	welcome welcome
	arrived monotime.Time // when the WELCOME did
}
