// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"net"
	"net/netip"
	"sync"
)

// Slots limits how many of something each party holds at a time, and all of them together. It remembers only parties
// that hold something. Its methods may be called from several goroutines at once.
type Slots[K comparable] struct {
	each, all int

	mu   sync.Mutex
	held map[K]int
	sum  int
}

// NewSlots returns limits for each party and for all of them together.
func NewSlots[K comparable](each, all int) *Slots[K] {
	return &Slots[K]{each: each, all: all, held: map[K]int{}}
}

// Take reports whether a party may hold one more, which Give gives back.
func (s *Slots[K]) Take(k K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sum >= s.all || s.held[k] >= s.each {
		return false
	}
	s.held[k]++
	s.sum++
	return true
}

// Give gives back one that the party holds. It does nothing if there is none.
func (s *Slots[K]) Give(k K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.held[k]
	if n == 0 {
		return
	}
	s.sum--
	if s.held[k] = n - 1; n == 1 {
		delete(s.held, k)
	}
}

// Listener limits the connections of each address, and of all. It closes those beyond the limits at once, so that they
// delay nobody else's.
type Listener struct {
	net.Listener
	Slots *Slots[netip.Addr]
}

// Accept returns the next connection within the limits. It holds its place until it is closed.
func (l Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		a := Address(c.RemoteAddr().String())
		if l.Slots.Take(a) {
			return &held{Conn: c, end: func() { l.Slots.Give(a) }}, nil
		}
		_ = c.Close()
	}
}

// held is a connection that has a place until it is closed.
type held struct {
	net.Conn
	once sync.Once
	end  func()
}

// Close implements net.Conn.
func (h *held) Close() error {
	h.once.Do(h.end)
	return h.Conn.Close()
}

// CloseWrite tells the other side that no more bytes come. It fails if the connection cannot tell that.
func (h *held) CloseWrite() error {
	if half, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return net.ErrClosed
}

// Address returns the address of HOST:PORT without a zone, IPv4 as IPv4; the zero one if there is none.
func Address(hostPort string) netip.Addr {
	a, _ := netip.ParseAddrPort(hostPort)
	return a.Addr().Unmap().WithZone("")
}
