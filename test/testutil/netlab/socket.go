// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is a TCP socket over IPv4 in a namespace. Each call blocks its thread in the kernel until it is done: neither
// Go's poller nor, on a goroutine that is locked to its thread, its scheduler is between the program and the kernel.
// After a pause these take about as long as a service that answers at once. It is a net.Conn once it is connected. One
// goroutine may use it at a time; deadlines may be set by others meanwhile.
type Socket struct {
	fd    int
	peer  netip.AddrPort
	ended atomic.Bool // a deadline has passed

	mu     sync.Mutex // held while it is closed, or a deadline is set
	closed bool
}

// Socket makes a socket in the namespace, which the caller closes.
func (ns *Namespace) Socket() (*Socket, error) {
	s := &Socket{}
	err := ns.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make a socket in %s: %w", ns.Name, err)
	}
	return s, nil
}

// DialContext connects the socket, as net.Dialer.DialContext does. It can be called once.
func (s *Socket) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := s.Connect(address)
	if err == nil {
		err = ctx.Err() // its deadline would end the connection
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Connect connects to an IPv4 address and port. If NonBlocking was called, it only begins to.
func (s *Socket) Connect(address string) (err error) {
	if s.peer, err = netip.ParseAddrPort(address); err != nil {
		return err
	}
	to := &unix.SockaddrInet4{Port: int(s.peer.Port()), Addr: s.peer.Addr().As4()}
	err = unix.Connect(s.fd, to)
	if errors.Is(err, unix.EINTR) { // it goes on
		if _, err = unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, -1); err == nil {
			err = s.Failed()
		}
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect to %s: %w", address, err)
	}
	return nil
}

// Failed returns the error of a connection that NonBlocking calls have begun.
func (s *Socket) Failed() error {
	code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = syscall.Errno(code)
	}
	return err
}

// NonBlocking has calls fail with EAGAIN rather than wait, or wait again.
func (s *Socket) NonBlocking(on bool) error { return unix.SetNonblock(s.fd, on) }

// FD is the socket's file descriptor, until Close.
func (s *Socket) FD() int { return s.fd }

// Read implements net.Conn.
func (s *Socket) Read(b []byte) (int, error) {
	n, err := again(func() (int, error) { return unix.Read(s.fd, b) })
	if n == 0 && err == nil && len(b) > 0 {
		if err = io.EOF; s.ended.Load() {
			err = os.ErrDeadlineExceeded
		}
	}
	return n, err
}

// Write implements net.Conn.
func (s *Socket) Write(b []byte) (int, error) {
	for done := 0; ; {
		n, err := again(func() (int, error) { return unix.SendmsgN(s.fd, b[done:], nil, nil, unix.MSG_NOSIGNAL) })
		if done += n; err != nil || done == len(b) {
			return done, err
		}
	}
}

// again repeats a call while signals interrupt it.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return 0, fmt.Errorf("%w: %w", os.ErrDeadlineExceeded, err)
		default:
			return max(n, 0), err
		}
	}
}

// Close implements net.Conn. It may be called again.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return unix.Close(s.fd)
}

// LocalAddr implements net.Conn.
func (s *Socket) LocalAddr() net.Addr {
	name, err := unix.Getsockname(s.fd)
	if at, ok := name.(*unix.SockaddrInet4); ok && err == nil {
		return &net.TCPAddr{IP: at.Addr[:], Port: at.Port}
	}
	return &net.TCPAddr{}
}

// RemoteAddr implements net.Conn.
func (s *Socket) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(s.peer) }

// SetDeadline implements net.Conn. A time that is to come limits each later call; one that has passed ends the
// connection, and with it the call that is under way.
func (s *Socket) SetDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	left := time.Duration(0) // without limit
	if !t.IsZero() {
		if left = time.Until(t); left <= 0 {
			s.ended.Store(true)
			return unix.Shutdown(s.fd, unix.SHUT_RDWR)
		}
	}
	limit := unix.NsecToTimeval(left.Nanoseconds())
	return errors.Join(unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
}

// SetReadDeadline implements net.Conn: it is SetDeadline.
func (s *Socket) SetReadDeadline(t time.Time) error { return s.SetDeadline(t) }

// SetWriteDeadline implements net.Conn: it is SetDeadline.
func (s *Socket) SetWriteDeadline(t time.Time) error { return s.SetDeadline(t) }
