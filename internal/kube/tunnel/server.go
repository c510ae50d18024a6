// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/quota"
)

const requestTimeout = 5 * time.Second

// Server accepts tunnels. It is the net.Listener of the tunnels that end here.
type Server struct {
	// Leader returns the address of the server where tunnels end; empty if they end here.
	Leader func(context.Context) (string, error)
	Log    *slog.Logger

	once   sync.Once
	limits limits
	conns  chan net.Conn
	closed chan struct{}

	mu   sync.Mutex
	open map[net.Conn]struct{} // tunnels
	addr net.Addr
}

func (s *Server) init() {
	s.once.Do(func() {
		s.conns, s.closed, s.open = make(chan net.Conn), make(chan struct{}), map[net.Conn]struct{}{}
		s.limits = newLimits()
	})
}

// Serve accepts tunnels on a listener until ctx ends; then it closes it, and all tunnels.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.init()
	s.mu.Lock()
	s.addr = l.Addr()
	s.mu.Unlock()
	srv := &http.Server{
		Handler: http.HandlerFunc(s.handle), ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout,
		IdleTimeout: requestTimeout, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug), // strangers cause these errors
	}
	srv.SetKeepAlivesEnabled(false)
	defer s.Close()
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	err := srv.Serve(quota.Listener{Listener: l, Slots: s.limits.connections})
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("tunnels of people: %w", err)
}

// Accept implements net.Listener.
func (s *Server) Accept() (net.Conn, error) {
	s.init()
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// Close implements net.Listener. It closes all tunnels.
func (s *Server) Close() error {
	s.init()
	s.mu.Lock()
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, c := range open {
		_ = c.Close() // it takes itself out of s.open
	}
	return nil
}

// handle answers a request for a tunnel.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != Path || r.Method != http.MethodGet {
		http.NotFound(w, r)
		return
	}
	if !isUpgrade(r.Header) {
		w.Header().Set("Upgrade", Protocol)
		http.Error(w, "this is for 'kubectl wangell': upgrade to "+Protocol, http.StatusUpgradeRequired)
		return
	}
	leader, err := s.Leader(r.Context())
	if err == nil && leader != "" && r.Header.Get(forwarded) != "" {
		err = errors.New("the leading controller has just changed: try again")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	from := originOf(r)
	if !s.limits.take(from) {
		http.Error(w, "too many people are connected, or too many from here: try again later",
			http.StatusServiceUnavailable)
		return
	}
	release := sync.OnceFunc(func() { s.limits.give(from) })
	var onward net.Conn
	if leader != "" {
		if onward, err = forward(r.Context(), leader, from); err != nil {
			release()
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
	}
	conn, ok := s.hijack(w, from, release)
	if !ok {
		release()
		if onward != nil {
			_ = onward.Close()
		}
		return
	}
	if onward != nil {
		splice(conn, onward)
		return
	}
	select {
	case s.conns <- conn:
	case <-s.closed:
		_ = conn.Close()
	}
}

// hijack turns a request into a tunnel, which calls release when it is closed. Without one it has answered.
func (s *Server) hijack(w http.ResponseWriter, from origin, release func()) (net.Conn, bool) {
	raw, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return nil, false
	}
	c := &tunnelled{Conn: raw, s: s, from: from, release: release}
	s.mu.Lock()
	s.open[c] = struct{}{}
	s.mu.Unlock()
	select {
	case <-s.closed: // Close may not have seen it
		_ = c.Close()
		return nil, false
	default:
	}
	_ = raw.SetDeadline(time.Now().Add(requestTimeout))
	_, err = fmt.Fprintf(raw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", Protocol)
	if err != nil {
		_ = c.Close()
		return nil, false
	}
	_ = raw.SetDeadline(time.Time{})
	return &buffered{Conn: c, r: rw.Reader}, true
}

// tunnelled is a tunnel, which counts until it is closed.
type tunnelled struct {
	net.Conn
	s       *Server
	from    origin
	release func()
}

// RemoteAddr implements net.Conn. Origin reads it.
func (c *tunnelled) RemoteAddr() net.Addr { return c.from }

// Close implements net.Conn.
func (c *tunnelled) Close() error {
	err := c.Conn.Close()
	c.release()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	delete(c.s.open, c)
	return err
}

// CloseWrite tells the other side that no more bytes come.
func (c *tunnelled) CloseWrite() error {
	closeWrite(c.Conn)
	return nil
}

// forward begins a tunnel of a client to another server.
func forward(ctx context.Context, addr string, from origin) (net.Conn, error) {
	failed := func(err error) (net.Conn, error) {
		return nil, fmt.Errorf("the leading controller (%s) cannot be reached: %w", addr, err)
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return failed(err)
	}
	_ = conn.SetDeadline(time.Now().Add(dialTimeout))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+Path, nil)
	if err != nil {
		_ = conn.Close()
		return failed(err)
	}
	ask(r.Header)
	r.Header.Set(forwarded, "1")
	r.Header.Set(forwardedFor, from.client.String())
	if err := r.Write(conn); err != nil {
		_ = conn.Close()
		return failed(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, r)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		err = errors.New(textOf(resp))
	}
	if err != nil {
		_ = conn.Close()
		return failed(err)
	}
	_ = conn.SetDeadline(time.Time{})
	return &buffered{Conn: conn, r: in}, nil
}
