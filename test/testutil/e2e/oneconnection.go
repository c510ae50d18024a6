// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"wangell.loutres.me/test/testutil/netlab"
)

// OneConnection returns an HTTP/1.1 client in a network namespace that keeps its connection, as long as the server
// does: one to one address, for one request at a time, whose answer it reads whole. net/http's own transport also
// gives up a connection whose writer has not run within 50 ms of the answer, as happens on a busy machine. A request
// on a connection that the server has closed fails. CloseIdleConnections ends the connection.
func OneConnection(from *netlab.Namespace) *http.Client {
	return &http.Client{Transport: &oneConnection{from: from}}
}

// oneConnection is the transport of such a client.
type oneConnection struct {
	from *netlab.Namespace

	mu   sync.Mutex
	conn net.Conn // nil if there is none
	in   *bufio.Reader
}

// RoundTrip implements http.RoundTripper.
func (o *oneConnection) RoundTrip(r *http.Request) (*http.Response, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	reused := o.conn != nil
	if !reused {
		conn, err := o.from.Dialer().DialContext(r.Context(), "tcp4", r.URL.Host)
		if err != nil {
			return nil, err
		}
		o.conn, o.in = conn, bufio.NewReader(conn)
	}
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{Conn: o.conn, Reused: reused})
	}
	answer, err := o.exchange(r)
	if err != nil {
		o.close()
		return nil, fmt.Errorf("request on a kept connection (reused: %t): %w", reused, err)
	}
	if answer.Close {
		o.close()
	}
	return answer, nil
}

// exchange sends a request and reads its answer. mu is held.
func (o *oneConnection) exchange(r *http.Request) (*http.Response, error) {
	if err := o.conn.SetDeadline(time.Now().Add(Patience)); err != nil {
		return nil, err
	}
	if err := r.Write(o.conn); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(o.in, r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return answer, errors.Join(err, o.conn.SetDeadline(time.Time{}))
}

// close ends the connection. mu is held.
func (o *oneConnection) close() {
	if o.conn != nil {
		_ = o.conn.Close()
		o.conn, o.in = nil, nil
	}
}

// CloseIdleConnections implements the interface that http.Client looks for.
func (o *oneConnection) CloseIdleConnections() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.close()
}
