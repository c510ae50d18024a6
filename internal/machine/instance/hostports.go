// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/backoff"
)

// hostPorts reserves the machine's ports at which services are published: a listening socket keeps other programs
// away from each. Package egress redirects the packets before they reach that socket. The address 0.0.0.0 stands for
// all addresses of the machine.
type hostPorts struct {
	held map[netip.AddrPort]net.Listener
	off  bool // nothing redirects packets to services

	mu   sync.Mutex                  // guards what follows
	busy map[netip.AddrPort]waitPort // endpoints that cannot be had yet
}

// waitPort is a service that waits for an endpoint of the machine.
type waitPort struct {
	service v1alpha1.Key
	why     string // and what to do
}

// take reserves the endpoints of services. The caller calls commit once the services are accepted, or else rollback. On
// error nothing is reserved. An endpoint that another program has, or whose address the machine has not, is no error:
// commit returns those that services wait for.
func (h *hostPorts) take(list []*v1alpha1.WangellService) (commit func() map[netip.AddrPort]waitPort, rollback func(),
	err error) {
	wanted, busy := map[netip.AddrPort]v1alpha1.Key{}, map[netip.AddrPort]waitPort{}
	fresh := map[netip.AddrPort]net.Listener{}
	rollback = func() {
		for _, l := range fresh {
			_ = l.Close()
		}
	}
	var later []netip.AddrPort // those that overlap endpoints which commit gives back
	for _, s := range list {
		k := v1alpha1.KeyOf(s)
		for _, port := range s.Spec.PortList() {
			at := port.Host
			if !at.IsValid() {
				continue
			}
			if err := h.free(at, k, wanted); err != nil {
				rollback()
				return nil, nil, err
			}
			wanted[at] = k
			if h.held[at] != nil {
				continue
			}
			l, err := listenAt(at)
			if err == nil {
				fresh[at] = l
				continue
			}
			why, waits := cannotYet(at, err)
			switch {
			case !waits:
				rollback()
				return nil, nil, fmt.Errorf("service %s: spec.hostPort %d cannot be used on this machine: %w: "+
					"choose another", k, at.Port(), errors.Unwrap(err))
			case h.overlaps(at):
				later = append(later, at)
			default:
				busy[at] = waitPort{k, why}
			}
		}
	}
	commit = func() map[netip.AddrPort]waitPort {
		for at, l := range h.held {
			if _, still := wanted[at]; !still {
				_ = l.Close()
				delete(h.held, at)
			}
		}
		for _, at := range later {
			l, err := listenAt(at)
			if err != nil {
				why, _ := cannotYet(at, err)
				busy[at] = waitPort{wanted[at], why}
				continue
			}
			fresh[at] = l
		}
		for at, l := range fresh {
			h.held[at] = l
			go refuseAll(l, time.Sleep)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.busy = busy
		return maps.Clone(busy)
	}
	return commit, rollback, nil
}

// free returns an error if a service cannot be published at an endpoint: others are wanted already, or none can be.
func (h *hostPorts) free(at netip.AddrPort, k v1alpha1.Key, wanted map[netip.AddrPort]v1alpha1.Key) error {
	for other, of := range wanted {
		if v1alpha1.EndpointsOverlap(at, other) {
			return fmt.Errorf("service %s: spec.hostPort %d is already that of service %s: choose another", k, at.Port(), of)
		}
	}
	if h.off {
		return fmt.Errorf("service %s: spec.hostPort %d needs nf_tables in the kernel, and --egress: "+
			"'wangell doctor' shows the first", k, at.Port())
	}
	return nil
}

// overlaps reports whether an endpoint that is held overlaps at.
func (h *hostPorts) overlaps(at netip.AddrPort) bool {
	for held := range h.held {
		if v1alpha1.EndpointsOverlap(held, at) {
			return true
		}
	}
	return false
}

// listenAt reserves an endpoint of the machine.
func listenAt(at netip.AddrPort) (net.Listener, error) { return net.Listen("tcp4", at.String()) }

// cannotYet says why an endpoint cannot be had at present, and what to do. It returns false if it never can.
func cannotYet(at netip.AddrPort, err error) (why string, waits bool) {
	again := fmt.Sprintf("tried again at least every %v", longestPortPause)
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Sprintf("hostAddress %s: this machine has no such address ('ip address'): write one that it has; %s",
			at.Addr(), again), true
	}
	return fmt.Sprintf("hostPort %d: another program of this machine has it ('ss -lntp'): stop that, or choose another "+
		"port; %s", at.Port(), again), errors.Is(err, unix.EADDRINUSE)
}

// again tries to reserve the endpoints that could not be had, and returns those that were reserved.
func (h *hostPorts) again() map[netip.AddrPort]v1alpha1.Key {
	h.mu.Lock()
	defer h.mu.Unlock()
	free := map[netip.AddrPort]v1alpha1.Key{}
	for at, w := range h.busy {
		if l, err := listenAt(at); err == nil {
			h.held[at], free[at] = l, w.service
			delete(h.busy, at)
			go refuseAll(l, time.Sleep)
		}
	}
	return free
}

// waits says why a service waits for its endpoint, and what to do; "" if it waits for none.
func (h *hostPorts) waits(k v1alpha1.Key) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.busy {
		if w.service == k {
			return w.why
		}
	}
	return ""
}

// waiting reports whether a service waits for its endpoint.
func (h *hostPorts) waiting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.busy) > 0
}

// close gives all endpoints back.
func (h *hostPorts) close() {
	for at, l := range h.held {
		_ = l.Close()
		delete(h.held, at)
	}
}

// refuseAll closes connections that were not redirected to a service, until the listener is closed. While none can be
// accepted, as without free file descriptors, it tries again after pauses.
func refuseAll(l net.Listener, sleep func(time.Duration)) {
	var pause time.Duration
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			pause = backoff.Next(pause, firstAcceptPause, longestAcceptPause)
			sleep(pause)
			continue
		}
		pause = 0
		_ = c.Close()
	}
}

// The pauses between attempts to accept a connection, after a failure.
const (
	firstAcceptPause   = 5 * time.Millisecond
	longestAcceptPause = time.Second
)

// The pauses between attempts to get an endpoint of the machine. The kernel does not tell when one that
// another program has becomes free.
const (
	firstPortPause   = time.Second
	longestPortPause = 30 * time.Second
)
