// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"wangell.loutres.me/internal/show/httpapi"
)

// Serve serves on a listener, with TLS, until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{s.cfg.Certificate}, MinVersion: tls.VersionTLS13,
			ClientAuth: tls.RequestClientCert, // identities verifies it, if there is no token
		},
		// A map without entries turns HTTP/2 off, whose streams the limits of connections would not see.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		BaseContext:  func(net.Listener) context.Context { return ctx },
		ErrorLog:     slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug), // strangers cause these errors
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	defer s.boards.close()
	err := srv.ServeTLS(l, "", "")
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("API for people: %w", err)
}

// handler returns the handler of all requests.
func (s *Server) handler() http.Handler {
	return s.guard(httpapi.Handler{
		Of: s.services, Versions: s.cfg.Versions, Dashboard: s.dashboard,
	}.Routes())
}
