// SPDX-License-Identifier: Apache-2.0

// Package forward forwards ports of this machine to a service of a cluster, which wakes for each first connection and
// is kept awake until the last one has ended. Bytes go through the API server and kubelet to one of the service's pods,
// as with 'kubectl port-forward', and so do not pass the gate.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// renewPause is the pause before a service is held again after the controller that did so has gone.
	renewPause = time.Second
	// releaseTimeout bounds the last request about a service.
	releaseTimeout = 5 * time.Second
)

// Port is a port of this machine and the one of the service to which it leads.
type Port struct {
	Local  uint16 // 0: any free one
	Remote uint16
}

// ParsePort parses [LOCAL:]PORT. Without LOCAL both are the same, and an empty LOCAL is any free port.
func ParsePort(text string) (p Port, err error) {
	local, remote, both := strings.Cut(text, ":")
	if !both {
		remote = local
	}
	number := func(s string) (uint16, error) {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("port %q: want [LOCAL:]PORT, such as 8080:80", text)
		}
		return uint16(n), nil
	}
	if p.Remote, err = number(remote); err == nil && p.Remote == 0 {
		err = fmt.Errorf("port %q: PORT must be from 1 to 65535", text)
	}
	if err == nil && local != "" {
		p.Local, err = number(local)
	}
	return p, err
}

// Service is what the forwarder needs of a service.
type Service interface {
	// Hold wakes the service, and returns once it serves. It stays awake until release is called, or ended is closed
	// because the controller has gone.
	Hold(ctx context.Context) (ended <-chan struct{}, release func(), err error)
	// Touch makes the service's idle timeout begin.
	Touch(ctx context.Context) error
	// Link reaches a pod that runs.
	Link(ctx context.Context) (Link, error)
}

// Link leads to one pod.
type Link interface {
	// Lives reports whether the pod still runs.
	Lives(ctx context.Context) bool
	// Pipe copies between a connection and a port of the pod until one of the two ends it. The port of the service
	// stands for its target port.
	Pipe(conn net.Conn, port uint16) error
	// Close ends all pipes.
	Close() error
}

// Forwarder forwards connections of listeners.
type Forwarder struct {
	service Service
	out     io.Writer // gets errors of connections, a line each

	mu      sync.Mutex // guards what follows
	open    int        // connections
	release func()     // nil if the service is not held
	link    Link       // nil if there is none
}

// New returns a forwarder to a service. It writes errors of single connections to out.
func New(service Service, out io.Writer) *Forwarder { return &Forwarder{service: service, out: out} }

// Run forwards the connections of listeners to the port of the same index, until ctx ends or a listener fails. It
// returns once all connections have ended and the service is released.
func (f *Forwarder) Run(ctx context.Context, listeners []net.Listener, ports []uint16) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	})
	defer stop()
	var all sync.WaitGroup
	for i, l := range listeners {
		all.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					cancel(err)
					return
				}
				all.Go(func() { f.forward(ctx, conn, ports[i]) })
			}
		})
	}
	<-ctx.Done()
	all.Wait()
	f.mu.Lock()
	if f.link != nil {
		_ = f.link.Close()
	}
	f.mu.Unlock()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// forward forwards one connection.
func (f *Forwarder) forward(ctx context.Context, conn net.Conn, port uint16) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	err := f.acquire(ctx)
	defer f.leave(ctx)
	if err == nil {
		var link Link
		if link, err = f.linkOf(ctx); err == nil {
			err = link.Pipe(conn, port)
		}
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(f.out, "connection of %s: %v\n", conn.RemoteAddr(), err)
	}
}

// acquire counts a connection, and holds the service.
func (f *Forwarder) acquire(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open++
	if f.release != nil {
		return nil
	}
	return f.hold(ctx)
}

// hold holds the service until leave, also if its controller goes. f.mu is held.
func (f *Forwarder) hold(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end) // a client that gives up does not wait for the wake
	ended, release, err := f.service.Hold(life)
	if !stop() || err != nil {
		end()
		if err == nil {
			release()
			err = context.Cause(ctx)
		}
		return err
	}
	f.release = func() { release(); end() }
	go func() {
		for {
			select {
			case <-ended:
			case <-life.Done():
				return
			}
			var again func()
			var err error
			if ended, again, err = f.service.Hold(life); err == nil {
				context.AfterFunc(life, again)
				continue
			}
			gone := make(chan struct{})
			close(gone)
			ended = gone
			select {
			case <-time.After(renewPause):
			case <-life.Done():
			}
		}
	}()
	return nil
}

// leave forgets a connection, and releases the service with the last one. Its idle timeout begins then.
func (f *Forwarder) leave(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open--; f.open > 0 || f.release == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := f.service.Touch(ctx); err != nil {
		fmt.Fprintln(f.out, err)
	}
	f.release()
	f.release = nil
}

// linkOf returns a link to a pod that runs: the former one, or a new one if that pod does not any more.
func (f *Forwarder) linkOf(ctx context.Context) (Link, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.link != nil && f.link.Lives(ctx) {
		return f.link, nil
	}
	if f.link != nil {
		_ = f.link.Close()
		f.link = nil
	}
	var err error
	f.link, err = f.service.Link(ctx)
	return f.link, err
}
