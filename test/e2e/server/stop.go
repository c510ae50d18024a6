// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// last lets the server exit without breaking connections.
var last ending

// ending counts open connections.
type ending struct {
	listener atomic.Pointer[net.Listener]
	begun    atomic.Bool
	mu       sync.Mutex
	open     map[net.Conn]bool
}

// serve is http.Serve, until close.
func (e *ending) serve(l net.Listener) error {
	e.open = map[net.Conn]bool{}
	e.listener.Store(&l)
	next := pages()
	s := http.Server{
		ConnState: func(c net.Conn, state http.ConnState) {
			e.mu.Lock()
			defer e.mu.Unlock()
			if state == http.StateClosed {
				delete(e.open, c)
			} else {
				e.open[c] = true
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if e.begun.Load() {
				w.Header().Set("Connection", "close")
			}
			next.ServeHTTP(w, r)
		}),
	}
	err := s.Serve(l)
	if e.begun.Load() {
		select {} // connections stay open
	}
	return err
}

// close closes the listening socket and returns when no connection is left. Unlike http.Server.Shutdown it leaves idle
// connections to their clients: a client that sends a request at that moment would lose it.
func (e *ending) close() {
	l := e.listener.Load()
	if l == nil {
		return
	}
	e.begun.Store(true)
	_ = (*l).Close()
	for {
		e.mu.Lock()
		n := len(e.open)
		e.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
