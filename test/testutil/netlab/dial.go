// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dialer connects from a namespace. All fields of net.Dialer may be set, except Control and ControlContext.
type Dialer struct {
	net.Dialer
	ns *Namespace
}

// Dialer returns a dialer whose sockets are in the namespace.
func (ns *Namespace) Dialer() *Dialer { return &Dialer{ns: ns} }

// Dial is DialContext without a context.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to address, an IP address and port; a host name would be resolved outside of the namespace. It
// never connects from another namespace. It occupies a thread while it waits.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial from %s: %w: want an IP address and port", d.ns.Name, err)
	}
	dialer := d.Dialer
	dialer.ControlContext = nil
	dialer.Control = d.ns.check
	var conn net.Conn
	err := d.ns.Do(func() (err error) {
		conn, err = dialer.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens in the namespace on address, a port with an optional IP address.
func (ns *Namespace) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: ns.check}
	var l net.Listener
	err := ns.Do(func() (err error) {
		l, err = config.Listen(ctx, network, address)
		return err
	})
	return l, err
}

// check is a net.Dialer.Control that refuses sockets of other namespaces.
func (ns *Namespace) check(_, _ string, c syscall.RawConn) error {
	var cookie uint64
	var err error
	if ctlErr := c.Control(func(fd uintptr) {
		cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	}); ctlErr != nil {
		return ctlErr
	}
	if err != nil {
		return fmt.Errorf("read the network namespace of a socket: %w", err)
	}
	if cookie != ns.Cookie {
		return fmt.Errorf("the socket is in network namespace %d, not in %s (%d)", cookie, ns.Name, ns.Cookie)
	}
	return nil
}
