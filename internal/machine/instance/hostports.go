// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/api/v1alpha1"
)

// hostPorts reserves the machine's ports at which services are published: a listening socket keeps other programs
// away from each. Package egress redirects the packets before they reach that socket.
type hostPorts struct {
	held map[uint16]net.Listener
	off  bool // nothing redirects packets to services

	mu   sync.Mutex              // guards what follows
	busy map[uint16]v1alpha1.Key // ports that other programs have, and the services that want them
}

// take reserves the ports of services. The caller calls commit once the services are accepted, or else rollback. On
// error nothing is reserved. A port that another program has is no error: it is in busy.
func (h *hostPorts) take(list []*v1alpha1.WangellService) (busy map[uint16]v1alpha1.Key, commit, rollback func(),
	err error) {
	wanted, busy := map[uint16]v1alpha1.Key{}, map[uint16]v1alpha1.Key{}
	fresh := map[uint16]net.Listener{}
	rollback = func() {
		for _, l := range fresh {
			_ = l.Close()
		}
	}
	for _, s := range list {
		port, k := uint16(s.Spec.HostPort), v1alpha1.KeyOf(s)
		if port == 0 {
			continue
		}
		if other, taken := wanted[port]; taken {
			rollback()
			return nil, nil, nil, fmt.Errorf("service %s: spec.hostPort %d is already that of service %s: choose another",
				k, port, other)
		}
		wanted[port] = k
		if h.off {
			rollback()
			return nil, nil, nil, fmt.Errorf("service %s: spec.hostPort %d needs nf_tables in the kernel, and --egress: "+
				"'wangell doctor' shows the first", k, port)
		}
		if h.held[port] != nil {
			continue
		}
		l, err := listenAt(port)
		if errors.Is(err, unix.EADDRINUSE) {
			busy[port] = k
			continue
		}
		if err != nil {
			rollback()
			return nil, nil, nil, fmt.Errorf("service %s: spec.hostPort %d cannot be used on this machine: %w: "+
				"choose another", k, port, errors.Unwrap(err))
		}
		fresh[port] = l
	}
	commit = func() {
		for port, l := range h.held {
			if _, still := wanted[port]; !still {
				_ = l.Close()
				delete(h.held, port)
			}
		}
		for port, l := range fresh {
			h.held[port] = l
			go refuseAll(l)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.busy = busy
	}
	return busy, commit, rollback, nil
}

// listenAt reserves a port of the machine.
func listenAt(port uint16) (net.Listener, error) {
	return net.Listen("tcp4", net.JoinHostPort("0.0.0.0", strconv.Itoa(int(port))))
}

// again tries to reserve the ports that other programs had, and returns those that are free now.
func (h *hostPorts) again() map[uint16]v1alpha1.Key {
	h.mu.Lock()
	defer h.mu.Unlock()
	free := map[uint16]v1alpha1.Key{}
	for port, k := range h.busy {
		if l, err := listenAt(port); err == nil {
			h.held[port], free[port] = l, k
			delete(h.busy, port)
			go refuseAll(l)
		}
	}
	return free
}

// waits returns the port that a service waits for; 0 if it waits for none.
func (h *hostPorts) waits(k v1alpha1.Key) uint16 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for port, of := range h.busy {
		if of == k {
			return port
		}
	}
	return 0
}

// waiting reports whether a service waits for its port.
func (h *hostPorts) waiting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.busy) > 0
}

// close gives all ports back.
func (h *hostPorts) close() {
	for port, l := range h.held {
		_ = l.Close()
		delete(h.held, port)
	}
}

// refuseAll closes connections that were not redirected to a service, until the listener is closed.
func refuseAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_ = c.Close()
		}
	}
}

// busyPort says that a service waits for its port, and what to do.
func busyPort(port uint16) string {
	return fmt.Sprintf("hostPort %d: another program of this machine has it ('ss -lntp'): stop that, or choose another "+
		"port; tried again at least every %v", port, longestPortPause)
}

// The pauses between attempts to get a port of the machine that another program has. The kernel does not tell when it
// becomes free.
const (
	firstPortPause   = time.Second
	longestPortPause = 30 * time.Second
)
