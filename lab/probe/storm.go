// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/netlab"
)

// Call is one of the requests of a Storm.
type Call struct {
	// Socket is connected already, unless Address is set: then Storm connects it to that address and port.
	Socket  *netlab.Socket
	Address string
	// Request is sent once it is connected. It must be short.
	Request string
}

// Storm makes requests at once, and returns for each the time until the first byte of its answer, or why there is
// none. It does not read the answers, and Done stays 0. One thread makes all requests (epoll(7)), so that clients
// take little processor time from the services.
func Storm(ctx context.Context, calls []Call) ([]Timing, []error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := storm{calls, 0, make([]time.Time, len(calls)), make([]Timing, len(calls)), make([]error, len(calls)), len(calls)}
	var err error
	if s.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		s.endAll(err)
		return s.timings, s.errs
	}
	defer unix.Close(s.poll)
	for i := range calls {
		if err := calls[i].Socket.NonBlocking(true); err != nil {
			s.end(i, err)
		}
	}
	for i := range calls {
		if s.errs[i] == nil {
			s.begin(i)
		}
	}
	s.run(ctx)
	for i := range calls {
		if err := calls[i].Socket.NonBlocking(false); s.errs[i] == nil {
			s.errs[i] = err
		}
	}
	return s.timings, s.errs
}

// storm is the state of Storm.
type storm struct {
	calls   []Call
	poll    int
	began   []time.Time
	timings []Timing
	errs    []error
	left    int // requests that have not ended
}

// end ends a request that fails.
func (s *storm) end(i int, err error) {
	s.errs[i] = fmt.Errorf("request %d of %d at once: %w", i+1, len(s.calls), err)
	s.left--
}

// endAll ends all requests that have not ended.
func (s *storm) endAll(err error) {
	for i := range s.calls {
		if s.errs[i] == nil && s.timings[i].FirstByte == 0 {
			s.end(i, err)
		}
	}
}

// begin begins to connect, or sends the request.
func (s *storm) begin(i int) {
	c := s.calls[i]
	s.began[i] = time.Now()
	if c.Address == "" {
		s.send(i, unix.EPOLL_CTL_ADD)
		return
	}
	err := c.Socket.Connect(c.Address)
	if err == nil {
		err = s.watch(i, unix.EPOLL_CTL_ADD, unix.EPOLLOUT)
	}
	if err != nil {
		s.end(i, err)
	}
}

// send sends the request, and waits for the answer.
func (s *storm) send(i, op int) {
	_, err := s.calls[i].Socket.Write([]byte(s.calls[i].Request))
	if err == nil {
		err = s.watch(i, op, unix.EPOLLIN)
	}
	if err != nil {
		s.end(i, err)
	}
}

// watch has epoll report a socket. Fd is what it then returns.
func (s *storm) watch(i, op int, events uint32) error {
	return unix.EpollCtl(s.poll, op, s.calls[i].Socket.FD(), &unix.EpollEvent{Events: events, Fd: int32(i)})
}

// run returns once all requests have ended.
func (s *storm) run(ctx context.Context) {
	var events [64]unix.EpollEvent
	for deadline := time.Now().Add(Timeout); s.left > 0; {
		n, err := unix.EpollWait(s.poll, events[:], stormLook)
		switch {
		case ctx.Err() != nil:
			err = ctx.Err()
		case errors.Is(err, unix.EINTR):
			err = nil
		case n == 0 && time.Now().After(deadline):
			err = fmt.Errorf("no answer within %v", Timeout)
		}
		if err != nil {
			s.endAll(err)
			return
		}
		for _, e := range events[:max(n, 0)] {
			s.ready(int(e.Fd))
		}
	}
}

// stormLook is the interval, in milliseconds, at which run checks whether to end.
const stormLook = 100

// ready continues a request whose socket is connected, or has an answer.
func (s *storm) ready(i int) {
	t, c := &s.timings[i], s.calls[i]
	if t.Connected == 0 && c.Address != "" {
		t.Connected = time.Since(s.began[i])
		if err := c.Socket.Failed(); err != nil {
			s.end(i, err)
		} else {
			s.send(i, unix.EPOLL_CTL_MOD)
			return
		}
	} else {
		t.FirstByte = time.Since(s.began[i])
		s.left--
	}
	_ = s.watch(i, unix.EPOLL_CTL_DEL, 0) // it is watched
}
