// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/net/netutil"
)

// DefaultAddress is where an instance serves its dashboard.
const DefaultAddress = "127.0.0.1:9465"

// maxConnections bounds the connections to a dashboard.
const maxConnections = 256

// Listen opens an address (IP:port or localhost:port) for a dashboard.
func Listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w: give another address, such as %s or 127.0.0.1:0 for any free port", err,
			DefaultAddress)
	}
	return netutil.LimitListener(l, maxConnections), nil
}

// Loopback reports whether only this machine reaches an address.
func Loopback(a net.Addr) bool {
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

// NewServer returns a server for a Guard.
func NewServer(g *Guard, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: g, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}
