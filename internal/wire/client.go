// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

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
	c.group.Wait()
	return nil
}
