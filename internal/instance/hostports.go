// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// hostPorts reserves the machine's ports at which services are published: a listening socket keeps other programs
// away from each. Package egress redirects the packets before they reach that socket.
type hostPorts struct {
	held map[uint16]net.Listener
	off  bool // nothing redirects packets to services
}

// take reserves the ports of services. The caller calls commit once the services are accepted, or else rollback. On
// error nothing is reserved.
func (h *hostPorts) take(list []*v1alpha1.WangellService) (commit, rollback func(), err error) {
	wanted := map[uint16]runtime.Key{}
	fresh := map[uint16]net.Listener{}
	rollback = func() {
		for _, l := range fresh {
			_ = l.Close()
		}
	}
	for _, s := range list {
		port, k := uint16(s.Spec.HostPort), runtime.KeyOf(s)
		if port == 0 {
			continue
		}
		if other, taken := wanted[port]; taken {
			rollback()
			return nil, nil, fmt.Errorf("service %s: spec.hostPort %d is already that of service %s: choose another",
				k, port, other)
		}
		wanted[port] = k
		if h.off {
			rollback()
			return nil, nil, fmt.Errorf("service %s: spec.hostPort %d needs nf_tables in the kernel, and --egress: "+
				"'wangell doctor' shows the first", k, port)
		}
		if h.held[port] != nil {
			continue
		}
		l, err := net.Listen("tcp4", net.JoinHostPort("0.0.0.0", strconv.Itoa(int(port))))
		if err != nil {
			rollback()
			return nil, nil, fmt.Errorf("service %s: spec.hostPort %d cannot be used on this machine: %w: "+
				"choose another, or stop the program that has it ('ss -lntp')", k, port, errors.Unwrap(err))
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
	}
	return commit, rollback, nil
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
