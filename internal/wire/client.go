// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/monotime"
)

// maxWaiting bounds the messages that wait for a session.
const maxWaiting = 1024

// ClientConfig configures a Client. Handlers run on the client's goroutine, one call at a time; they must not
// block on the network. A handler may call Send, not Close.
type ClientConfig struct {
	// Server is the controller's address, host:port; SetServer changes it. The name is resolved anew for every
	// attempt. While it is empty the client waits.
	Server string
	Key    Key
	// Node is the name of this node, 1-253 bytes. Of several clients with one name the newest wins.
	Node string
	// Log may be nil.
	Log *slog.Logger
	// Keepalive is how often the server is asked for a sign of life; after five times as long without one the
	// session is over. Default: DefaultKeepalive. It must be the same at both ends.
	Keepalive time.Duration
	// First are sent first in every session, before what waited for one.
	First []Message
	// Connected and Disconnected tell of the session with the server. What the server must know is told again
	// in Connected: it may be another server.
	Connected, Disconnected func()
	// Services is called with what changed in the table, when a step is complete and the hash is right.
	// A new session may begin with the whole table: full is true, and what is not in upserts is gone.
	Services func(full bool, upserts []Service, removals []netip.AddrPort)
	// Receive is called once per message other than Sync, in the order of the server's sends.
	Receive func(Message)

	// Of this machine; tests play another one.
	boot bootID
	now  func() monotime.Time
}

// Client is a daemon's end. It reconnects by itself. Its methods may be called by several goroutines at once.
type Client struct {
	cfg      ClientConfig
	seals    handshakeSeals
	instance uint64
	counters counters
	group    sync.WaitGroup
	ctx      context.Context
	cancel   context.CancelFunc

	// Of the goroutine of the session, or of run while there is none.
	table   follower
	target  string        // the server of this attempt
	pause   time.Duration // before the next HELLO
	dropLog time.Time

	first [][]byte      // cfg.First, encoded
	moved chan struct{} // holds one: the server has another address

	mu      sync.Mutex
	server  string             // of the next attempt
	shaken  *session           // the last that shook hands: the server may have it before it is current
	current *session           // whose goroutine runs
	waiting [][]byte           // encoded reliable messages for the next session
	conn    net.Conn           // of this attempt
	dialing context.CancelFunc // of this attempt
}

// NewClient starts a client. It returns before there is a session.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := checkServer(cfg.Server); err != nil {
		return nil, err
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
	c := &Client{
		cfg: cfg, seals: newHandshakeSeals(cfg.Key), instance: uint64(time.Now().UnixNano()), pause: firstHello,
		server: cfg.Server, moved: make(chan struct{}, 1),
	}
	for _, m := range cfg.First {
		data, err := encodeToServer(m)
		if err != nil {
			return nil, err
		}
		c.first = append(c.first, data)
	}
	if err := (&hello{session: 1, node: cfg.Node}).check(); err != nil {
		return nil, fmt.Errorf("wire: client: %w", err)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.group.Go(c.run)
	return c, nil
}

// Counters returns the totals since the start.
func (c *Client) Counters() Counters { return c.counters.snapshot() }

func checkServer(addr string) error {
	if addr == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return fmt.Errorf("wire: address of the server: %w: write it as host:port", err)
	}
	return nil
}

// SetServer tells where the server is now, as ClientConfig.Server says. If that is another address, the client leaves
// its session, and says HELLO there at once.
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
	c.stop(errMoved, goodbyeClosed)
	select {
	case c.moved <- struct{}{}:
	default:
	}
	return nil
}

// stop ends the present attempt, whatever it does. c.mu is held.
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
}

func encodeToServer(m Message) ([]byte, error) {
	if m.Type() == TypeSync {
		return nil, fmt.Errorf("wire: %v is sent by servers only", m.Type())
	}
	return encode(m)
}

// Send queues a message to the server and returns at once. Without a session reliable messages wait for one, at
// most 1,024; Stats, Usage, Loads, Node and PodReport are dropped. What a session's end left without an acknowledgement is sent again in the next
// one, so a message may come twice then. Errors: ErrClosed, ErrQueueFull, or what of the message is outside its limits.
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
	if !reliable || ofSession(m.Type()) {
		return nil
	}
	if len(c.waiting) >= maxWaiting {
		return ErrQueueFull
	}
	c.waiting = append(c.waiting, data)
	return nil
}

// Close says goodbye to the server, and ends the client and its goroutines. Messages that were not
// acknowledged are lost. No handler may call it.
func (c *Client) Close() error { return c.close(goodbyeClosed) }

// Leave is Close for a daemon that will be started again, and whose gate goes on until then: it says so
// (Peer.Staying).
func (c *Client) Leave() error { return c.close(goodbyeStaying) }

func (c *Client) close(goodbye byte) error {
	c.mu.Lock()
	c.cancel()
	c.stop(ErrClosed, goodbye)
	c.mu.Unlock()
	c.group.Wait()
	return nil
}

// run connects again and again.
func (c *Client) run() {
	for attempt := 1; ; attempt++ {
		live, err := c.attempt()
		if c.ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		moved := c.server != c.target || c.target == ""
		select {
		case <-c.moved: // known now
		default:
		}
		c.mu.Unlock()
		switch {
		case moved:
			attempt, c.pause = 0, firstHello
		case errors.Is(err, errReplaced):
			c.cfg.Log.Warn("another, newer daemon of this node is connected: stop one of them", "node", c.cfg.Node)
			// It shall have its peace; but it may go.
			c.sleep(missedKeepalives * c.cfg.Keepalive)
		case live:
			attempt = 0
		default:
			if attempt&(attempt-1) == 0 {
				c.cfg.Log.Warn("no session with the controller: check that it runs, its address, and that both have the same key",
					"server", c.target, "attempts", attempt, "error", err)
			}
			c.sleep(c.nextPause())
		}
	}
}

// nextPause doubles the pause between HELLOs, up to a keepalive.
func (c *Client) nextPause() time.Duration {
	p := c.pause
	c.pause = min(2*p, c.cfg.Keepalive)
	return p
}

func (c *Client) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.moved:
	case <-c.ctx.Done():
	}
}

// attempt opens a socket, shakes hands, and reads until the session has ended. It is live if a session came up.
func (c *Client) attempt() (live bool, err error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	c.mu.Lock()
	c.target, c.dialing = c.server, cancel
	c.mu.Unlock()
	if c.target == "" {
		select {
		case <-c.moved:
		case <-c.ctx.Done():
		}
		return false, errMoved
	}
	var dialer net.Dialer
	dialed, err := dialer.DialContext(ctx, "udp", c.target)
	if err != nil {
		return false, err
	}
	conn := dialed.(*net.UDPConn)
	defer conn.Close()
	_ = conn.SetReadBuffer(1 << 20) // best effort, as in NewServer
	c.mu.Lock()
	c.conn = conn
	stopped := ctx.Err() != nil
	c.mu.Unlock()
	if stopped {
		return false, ErrClosed
	}
	s, err := c.shakeHands(conn)
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	s.start()
	c.shaken = s
	c.mu.Unlock()
	c.readSession(conn, s)
	select {
	case <-s.gone:
	default: // the socket was closed before a goroutine could end the session
		s.end(ErrClosed, 0)
	}
	s.mu.Lock()
	live, err = s.live, s.endErr
	s.mu.Unlock()
	if live {
		<-s.finished
	}
	return live, err
}

// joined hands the waiting messages to a session that came up.
func (c *Client) joined(s *session) {
	s.mu.Lock()
	refused := s.endErr != nil && errors.Is(s.endErr, errReplaced)
	s.mu.Unlock()
	if refused {
		return
	}
	c.pause = firstHello
	c.counters.sessions.Add(1)
	c.cfg.Log.Info("connected to the controller", "server", c.target)
	c.mu.Lock()
	if c.ctx.Err() != nil {
		s.end(ErrClosed, goodbyeClosed)
	}
	c.current = s
	if s.send(nil, true, slices.Concat(c.first, c.waiting)...) == nil {
		c.waiting = nil
	}
	c.mu.Unlock()
	if c.cfg.Connected != nil {
		c.cfg.Connected()
	}
}

// left takes back what the session did not bring over.
func (c *Client) left(s *session, err error) {
	c.mu.Lock()
	if c.current != s {
		c.mu.Unlock()
		return // refused before it was up
	}
	c.current = nil
	c.waiting = append(s.unfinished(), c.waiting...)
	if n := len(c.waiting); n > maxWaiting {
		c.waiting = c.waiting[:maxWaiting]
		c.cfg.Log.Warn("messages dropped: too many wait for the controller", "dropped", n-maxWaiting)
	}
	c.mu.Unlock()
	c.cfg.Log.Info("disconnected from the controller", "server", c.target, "reason", err)
	if c.cfg.Disconnected != nil {
		c.cfg.Disconnected()
	}
}

// receive takes a message of the server.
func (c *Client) receive(s *session, m Message) {
	piece, ok := m.(*Sync)
	if !ok {
		if c.cfg.Receive != nil {
			c.cfg.Receive(m)
		}
		return
	}
	step, err := c.table.add(piece)
	s.mu.Lock()
	s.table, s.hash = c.table.version, c.table.hash
	s.mu.Unlock()
	if err != nil {
		c.counters.syncRepairs.Add(1)
		c.cfg.Log.Warn("table of services is asked for again", "error", err)
		return
	}
	if step == nil {
		return
	}
	c.counters.syncSteps.Add(1)
	if c.cfg.Services != nil {
		c.cfg.Services(step.Base == 0, step.Upserts, step.Removals)
	}
}
