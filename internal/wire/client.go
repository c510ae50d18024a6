// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/tasks"
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
// Its methods: client.go has those for callers, client_connect.go attempts to connect and handshakes, and
// client_session.go the session with the server.
type Client struct {
	cfg      ClientConfig
	instance uint64 // start of the client in Unix nanoseconds
	counters counters
	group    tasks.Group
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

// NewClient starts a client. It returns before there is a session.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := checkServer(cfg.Server); err != nil {
		return nil, err
	}
	cfg.Log, cfg.Keepalive = logOrDiscard(cfg.Log), keepaliveOrDefault(cfg.Keepalive)
	var err error
	if cfg.environment, err = cfg.environment.withDefaults(); err != nil {
		return nil, err
	}
	c := &Client{
		cfg: cfg, instance: uint64(time.Now().UnixNano()),
		server: cfg.Server, key: cfg.Key, moved: make(chan struct{}, 1),
	}
	c.drops = dropLog{counters: &c.counters, log: cfg.Log}
	if c.first, err = encodeAll(cfg.First); err != nil {
		return nil, err
	}
	if err := (&hello{session: 1, node: cfg.Node}).check(); err != nil {
		return nil, fmt.Errorf("wire: client: %w", err)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.group.Go(c.run)
	return c, nil
}

// checkServer rejects addresses that are neither empty nor host:port.
func checkServer(addr string) error {
	if addr == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return fmt.Errorf("wire: address of the server: %w: write it as host:port", err)
	}
	return nil
}

// Counters returns the totals since the start of the client.
func (c *Client) Counters() Counters { return c.counters.snapshot() }

// SetServer changes ClientConfig.Server. If addr differs from the present address, the client connects to addr at once.
// It keeps the session that it has until that server answers, or the session ends.
func (c *Client) SetServer(addr string) error {
	if err := checkServer(addr); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == addr {
		return nil
	}
	c.server = addr
	c.endMeeting()
	switch {
	case c.current == nil || addr == "":
		c.leave()
	case addr != c.target:
		c.meet(addr)
	}
	return nil
}

// SetKey changes ClientConfig.Key for the handshakes to come. A session goes on with the key that it began with.
func (c *Client) SetKey(key Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.key == key {
		return
	}
	c.key = key
	switch {
	case c.current == nil:
		c.endMeeting()
		c.leave()
	case c.meeting != nil:
		c.endMeeting()
		c.meet(c.server)
	}
}

// SetFirst changes ClientConfig.First for the sessions to come.
func (c *Client) SetFirst(messages ...Message) error {
	first, err := encodeAll(messages)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.first = first
	return nil
}

// encodeAll encodes messages to the server.
func encodeAll(messages []Message) (all [][]byte, err error) {
	for _, m := range messages {
		data, err := encodeToServer(m)
		if err != nil {
			return nil, err
		}
		all = append(all, data)
	}
	return all, nil
}

// Send queues a message to the server and does not block. Without a session, reliable messages wait for one, at most
// 1,024 of them; Stats, Usage, Loads, Answers, Node, TagReady and PodReport are
// dropped. Messages that a session did not deliver before it
// ended are sent again in the next one, so they may arrive twice. Errors are ErrClosed, ErrQueueFull, or that a field
// of the message is outside its limits.
func (c *Client) Send(m Message) error {
	data, err := encodeToServer(m)
	if err != nil {
		return err
	}
	reliable := reliable(m.Type())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	if c.current != nil {
		if err := c.current.send(nil, reliable, data); !errors.Is(err, ErrPeerGone) {
			return err
		}
	}
	if !reliable || sessionScoped(m.Type()) {
		return nil
	}
	if len(c.waiting) >= maxWaiting {
		return ErrQueueFull
	}
	c.waiting = append(c.waiting, data)
	return nil
}

// Close says goodbye to the server, stops the client and waits for its goroutines. Messages that were not acknowledged
// are lost. Handlers must not call it.
func (c *Client) Close() error { return c.close(goodbyeClosed) }

// Leave is Close for a daemon that will be restarted and whose gate keeps running until then. It announces that
// (Peer.Restarting).
func (c *Client) Leave() error { return c.close(goodbyeRestarting) }

func (c *Client) close(goodbye byte) error {
	c.mu.Lock()
	c.cancel()
	c.stop(ErrClosed, goodbye)
	c.mu.Unlock()
	c.group.Stop()
	return nil
}

// leave ends the present attempt, so that the next one begins at once. c.mu is held.
func (c *Client) leave() {
	c.stop(errMoved, goodbyeClosed)
	select {
	case c.moved <- struct{}{}:
	default:
	}
}

// stop ends the present attempt, whether it dials, shakes hands or has a session. c.mu is held.
func (c *Client) stop(why error, goodbye byte) {
	if c.shaken != nil {
		c.shaken.end(why, goodbye)
	}
	if c.conn != nil {
		_ = c.conn.Close()
	}
	if c.dialing != nil {
		c.dialing()
	}
	if errors.Is(why, ErrClosed) {
		c.endMeeting()
	}
}

// endMeeting ends the handshake with the next server, and forgets its answer. c.mu is held.
func (c *Client) endMeeting() {
	if c.meeting != nil {
		c.meeting()
		c.meeting = nil
	}
	if c.met != nil {
		_ = c.met.conn.Close()
		c.met = nil
	}
}
