// SPDX-License-Identifier: Apache-2.0

// Package probe makes single HTTP requests and measures how long each step takes.
package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// Timing is how long an HTTP request took, measured from before connect().
type Timing struct {
	// Connected is the time until the connection was established, FirstByte until the first byte of the answer, Done
	// until its end.
	Connected, FirstByte, Done time.Duration
}

// Timeout is how long a request may take before it counts as lost.
const Timeout = 30 * time.Second

// DialFunc is net.Dialer.DialContext, or its counterpart for a network namespace.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// maxAnswer is the largest answer that is read, in bytes.
const maxAnswer = 16 << 20

// Request does one GET / for the site host on a connection of its own, and checks that the status is 200. It speaks
// HTTP/1.1, because some proxies refuse older versions.
func Request(ctx context.Context, dial DialFunc, address, host string) (Timing, error) {
	return RequestWithin(ctx, Timeout, dial, address, host)
}

// RequestWithin is Request with another limit than Timeout.
func RequestWithin(ctx context.Context, limit time.Duration, dial DialFunc, address, host string) (Timing, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var t Timing
	begin := time.Now()
	conn, err := dial(ctx, "tcp4", address)
	if err != nil {
		return t, err
	}
	t.Connected = time.Since(begin)
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.WriteString(conn, Get(host)); err != nil {
		return t, err
	}
	answer := make([]byte, 4096)
	n, err := conn.Read(answer)
	if err != nil && n == 0 {
		if errors.Is(err, io.EOF) {
			err = errors.New("the server closed the connection without an answer")
		}
		return t, err
	}
	t.FirstByte = time.Since(begin)
	rest, err := io.ReadAll(io.LimitReader(conn, maxAnswer))
	if err != nil {
		return t, err
	}
	t.Done = time.Since(begin)
	return t, checkStatus(string(answer[:n]) + string(rest))
}

// Get is what Request sends.
func Get(host string) string {
	return "GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
}

// Finish reads the whole answer to Get, and checks that the status is 200.
func Finish(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(Timeout)); err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, maxAnswer))
	if err != nil {
		return err
	}
	return checkStatus(string(answer))
}

func checkStatus(answer string) error {
	status, _, _ := strings.Cut(answer, "\r\n")
	if fields := strings.Fields(status); len(fields) < 2 || fields[1] != "200" {
		return fmt.Errorf("the answer begins with %.80q, want status 200", status)
	}
	return nil
}
