// SPDX-License-Identifier: Apache-2.0

package enrolment

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits of the load that strangers can cause. Each node asks once when its daemon starts, and later only if the key
// has changed.
const (
	maxConnections = 512 // open at a time
	maxOfSource    = 4   // of one address

	reviewBurst = 10          // requests of one address at once
	reviewPause = time.Second // between them in the long run
	maxSources  = 8192        // addresses that are remembered
)

// sources counts the connections and requests of each address. Time is a parameter.
type sources struct {
	mu    sync.Mutex
	open  int
	known map[netip.Addr]*source
	swept time.Time // when known was last looked through
}

type source struct {
	open  int
	spent time.Time // until when its requests are spent: each adds reviewPause
}

// connect reports whether an address may open a connection. disconnect ends it.
func (s *sources) connect(a netip.Addr, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.source(a, now)
	if from == nil || s.open >= maxConnections || from.open >= maxOfSource {
		return false
	}
	s.open++
	from.open++
	return true
}

func (s *sources) disconnect(a netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from := s.known[a]; from != nil && from.open > 0 {
		s.open--
		from.open--
	}
}

// ask reports whether another request of an address may be handled.
func (s *sources) ask(a netip.Addr, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.source(a, now)
	if from == nil {
		return false
	}
	if from.spent.Before(now) {
		from.spent = now
	}
	if from.spent.Sub(now) > (reviewBurst-1)*reviewPause {
		return false
	}
	from.spent = from.spent.Add(reviewPause)
	return true
}

// source returns the entry of an address, or nil if there is no room. s.mu is held.
func (s *sources) source(a netip.Addr, now time.Time) *source {
	if from := s.known[a]; from != nil {
		return from
	}
	if len(s.known) >= maxSources && now.Sub(s.swept) >= reviewPause {
		s.swept = now
		for other, from := range s.known {
			if from.open == 0 && from.spent.Before(now) {
				delete(s.known, other)
			}
		}
	}
	if len(s.known) >= maxSources {
		return nil
	}
	if s.known == nil {
		s.known = map[netip.Addr]*source{}
	}
	from := &source{}
	s.known[a] = from
	return from
}

// listener closes connections beyond the limits at once.
type listener struct {
	net.Listener
	sources *sources
}

// Accept returns the next connection within the limits.
func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		a := addressOf(c.RemoteAddr().String())
		if l.sources.connect(a, time.Now()) {
			return &counted{Conn: c, end: func() { l.sources.disconnect(a) }}, nil
		}
		_ = c.Close()
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	once sync.Once
	end  func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.once.Do(c.end)
	return c.Conn.Close()
}

// addressOf returns the address of HOST:PORT; the zero one if there is none.
func addressOf(hostPort string) netip.Addr {
	a, _ := netip.ParseAddrPort(hostPort)
	return a.Addr().Unmap()
}
