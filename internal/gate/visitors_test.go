// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/tcpserver"
)

// listenShared listens like listenIn, on a port that several sockets may share. Connections get one byte.
func listenShared(t testing.TB, ns, network, at string) net.Listener {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		_ = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return err
	}}
	config.SetMultipathTCP(false) // it uses several sockets
	var l net.Listener
	err := inNamespace(ns, func() (err error) { l, err = config.Listen(context.Background(), network, at); return err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	tcpserver.Serve(l, func(c net.Conn) { // until its client has left
		_, _ = c.Write([]byte{1})
		tcpserver.Echo(c)
	})
	return l
}

// visitors are clients that connect every two milliseconds.
type visitors struct {
	stop    chan struct{}
	group   sync.WaitGroup
	mu      sync.Mutex
	refused int
	met     int       // connections
	closed  time.Time // when a socket was closed, which resets what its program has not accepted yet
	errs    []error
}

func newVisitors(from ...string) *visitors {
	c := &visitors{stop: make(chan struct{})}
	for _, ns := range from {
		c.group.Go(func() {
			for {
				select {
				case <-c.stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				c.group.Go(func() { c.connect(ns) })
			}
		})
	}
	return c
}

func (c *visitors) connect(ns string) {
	began := time.Now()
	conn, err := dial(ns, vip)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.met++
		conn.Close()
	case errors.Is(err, syscall.ECONNREFUSED):
		c.refused++
	case wasReset(err) && (c.closed.IsZero() || began.Before(c.closed)):
	default:
		c.errs = append(c.errs, fmt.Errorf("%s after %v: %w", ns, time.Since(began), err))
	}
}

// wasReset reports whether a connection was reset, possibly after the server's FIN (EPIPE).
func wasReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// more waits until a number of other clients is connected.
func (c *visitors) more(t testing.TB, n int) {
	t.Helper()
	c.mu.Lock()
	until := c.met + n
	c.mu.Unlock()
	eventually(t, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.met < until {
			return fmt.Errorf("%d connections, want %d", c.met, until)
		}
		return nil
	})
}

// close closes a listening socket. A client that is reset by that is judged once its time is known.
func (c *visitors) close(l net.Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.Close()
	c.closed = time.Now()
}

// end waits for the clients, none of whom may have been refused.
func (c *visitors) end(t testing.TB) {
	t.Helper()
	close(c.stop)
	c.group.Wait()
	if c.refused > 0 || len(c.errs) > 0 {
		t.Errorf("%d clients were refused, %d got other errors, as %v; %d were connected", c.refused, len(c.errs),
			c.errs[:min(len(c.errs), 5)], c.met)
	}
}
