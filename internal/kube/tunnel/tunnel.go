// SPDX-License-Identifier: Apache-2.0

// Package tunnel carries connections to a process in a cluster through the API server: a client upgrades a request to
// the proxy subresource of a Service (RFC 9110, 7.8), and from then on the API server passes bytes on. It needs the
// right to get that one subresource, and no route to the cluster's network. Authentication and TLS are left to the
// protocol in the tunnel.
package tunnel

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// Path is where a tunnel begins.
	Path = "/tunnel"
	// Protocol is the name to which a request is upgraded.
	Protocol = "wangell-tunnel"

	// forwarded is the header of a request that a follower passes on. It is passed on once only.
	forwarded = "Wangell-Forwarded"

	dialTimeout = 5 * time.Second
	// graceTimeout bounds how long one direction goes on after the end of the other.
	graceTimeout = 5 * time.Second
)

// isUpgrade reports whether a request asks for a tunnel.
func isUpgrade(h http.Header) bool {
	has := func(name, want string) bool {
		for _, v := range h.Values(name) {
			for part := range strings.SplitSeq(v, ",") {
				if strings.EqualFold(strings.TrimSpace(part), want) {
					return true
				}
			}
		}
		return false
	}
	return has("Connection", "Upgrade") && has("Upgrade", Protocol)
}

// ask adds the headers that ask for a tunnel to a request.
func ask(h http.Header) {
	h.Set("Connection", "Upgrade")
	h.Set("Upgrade", Protocol)
}

// buffered is a connection from which some bytes have been read already.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

// Read implements net.Conn.
func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// splice copies both ways until both have ended, or one has failed, and closes both connections.
func splice(a, b net.Conn) {
	var both sync.WaitGroup
	copyTo := func(dst, src net.Conn) {
		_, err := io.Copy(dst, src)
		if err != nil && !errors.Is(err, net.ErrClosed) {
			_ = src.SetDeadline(time.Now())
			_ = dst.SetDeadline(time.Now())
			return
		}
		closeWrite(dst)
		_ = dst.SetReadDeadline(time.Now().Add(graceTimeout))
	}
	both.Go(func() { copyTo(a, b) })
	both.Go(func() { copyTo(b, a) })
	both.Wait()
	_ = a.Close()
	_ = b.Close()
}

// closeWrite tells the other side that no more bytes come.
func closeWrite(c net.Conn) {
	if b, ok := c.(*buffered); ok {
		c = b.Conn
	}
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	_ = c.Close()
}
