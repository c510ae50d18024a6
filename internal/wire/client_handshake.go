// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/cipher"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"wangell.loutres.me/internal/base/backoff"
)

// shakeHands repeats a HELLO until it is answered by a WELCOME, or patience has passed. pause returns the pause after
// the next HELLO.
func (c *Client) shakeHands(
	conn *net.UDPConn, server string, patience time.Duration, pause func() time.Duration, drops *dropLog,
) (*greeting, error) {
	h := hello{client: newRandom(), session: newID(), boot: c.cfg.boot, instance: c.instance, node: c.cfg.Node}
	c.mu.Lock()
	key := c.key
	c.mu.Unlock()
	seal := handshakeSeal(key, useWelcome)
	buf := make([]byte, maxDatagram+1)
	until := time.Now().Add(patience)
	var refused error
	for time.Now().Before(until) {
		h.sent = c.cfg.now()
		c.write(conn, h.seal(key, newNonce()))
		if err := conn.SetReadDeadline(time.Now().Add(pause())); err != nil {
			return nil, err
		}
		for {
			n, err := conn.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return nil, ErrClosed
			}
			if errors.Is(err, syscall.ECONNREFUSED) {
				refused = err // reported once per HELLO; the server may start at any moment
				continue
			}
			if err != nil {
				break
			}
			c.counters.received(n)
			w, err := c.openWelcome(buf[:n], seal, &h)
			if err != nil {
				drops.dropped(err, server)
				continue
			}
			g := &greeting{conn: conn, key: key, hello: h, welcome: w, arrived: c.cfg.now()}
			return g, conn.SetReadDeadline(time.Time{})
		}
	}
	if refused != nil {
		return nil, refused
	}
	return nil, errNoAnswer
}

// openWelcome opens the answer to h.
func (c *Client) openWelcome(d []byte, seal cipher.AEAD, h *hello) (w welcome, err error) {
	kind, err := datagramKind(d)
	if err != nil {
		return w, err
	}
	if kind != kindWelcome {
		return w, errUnknown // of an earlier session
	}
	plain, err := openHandshake(seal, d, clearHeader, welcomeSize)
	if err != nil {
		return w, err
	}
	if w, err = decodeWelcome(plain); err != nil {
		return w, fmt.Errorf("WELCOME: %w", err)
	}
	if w.client != h.client {
		return w, fmt.Errorf("WELCOME: %w", errReplay)
	}
	return w, nil
}

// write sends a datagram. An error is treated like a loss on the way.
func (c *Client) write(conn *net.UDPConn, d []byte) {
	c.counters.sent(len(d))
	_, _ = conn.Write(d)
}

// patience returns how long a handshake waits for its WELCOME after some that failed. It doubles: a server that many
// clients ask at once may answer so late that a shorter handshake has always ended by then, to begin anew.
func (c *Client) patience(failed int) time.Duration {
	return min(missedKeepalives*c.cfg.Keepalive<<min(failed, 2), pendingLife/2)
}

// nextPause returns the pause after the next HELLO. Pauses double up to one keepalive interval.
func (c *Client) nextPause() time.Duration {
	c.pause = backoff.Next(c.pause, firstHello, c.cfg.Keepalive)
	return c.pause
}
