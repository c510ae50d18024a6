// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// Timing is how long an HTTP request took, from before connect().
type Timing struct {
	// Connected is when the connection stood, FirstByte when the first byte of the answer came, Done when all of it had.
	Connected, FirstByte, Done time.Duration
}

// requestTimeout is how long a request may take until it counts as lost.
const requestTimeout = 30 * time.Second

// dialFunc is net.Dialer.DialContext, or that of a network namespace.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// request does one GET / on a connection of its own, for the site host, and checks that the answer is 200. It speaks
// HTTP/1.1, as some proxies refuse what is older.
func request(ctx context.Context, dial dialFunc, address, host string) (Timing, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
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
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); err != nil {
		return t, err
	}
	answer := make([]byte, 4096)
	n, err := conn.Read(answer)
	if err != nil && n == 0 {
		if errors.Is(err, io.EOF) {
			err = errors.New("the connection was closed without an answer")
		}
		return t, err
	}
	t.FirstByte = time.Since(begin)
	rest, err := io.ReadAll(io.LimitReader(conn, 16<<20))
	if err != nil {
		return t, err
	}
	t.Done = time.Since(begin)
	status, _, _ := strings.Cut(string(answer[:n])+string(rest), "\r\n")
	if fields := strings.Fields(status); len(fields) < 2 || fields[1] != "200" {
		return t, fmt.Errorf("the answer begins with %.80q, want status 200", status)
	}
	return t, nil
}

// ms converts a duration to milliseconds.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
