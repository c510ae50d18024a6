// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/test/testutil/forge"
	"wangell.loutres.me/test/testutil/netlab"
)

// forgedSources are the source addresses of forged SYNs. No host of the experiment has one, and no packet leaves the
// experiment.
var forgedSources = netip.MustParsePrefix("10.47.0.0/16")

// attacker sends SYNs that look as if they came from a host. They enter the link at the node's port: a bridge would
// cost more than the gate itself.
type attacker struct {
	link     *netlab.Namespace
	port     string     // of the node, in link
	source   netip.Addr // of the host
	from, to net.HardwareAddr
}

// newAttacker prepares attacks from a host of a network.
func newAttacker(n *netlab.Net, host *netlab.Namespace) (a *attacker, err error) {
	a = &attacker{link: n.Link, port: n.Node.Host, source: host.Addr}
	if a.from, err = hardwareAddr(host, netlab.Device); err != nil {
		return nil, err
	}
	a.to, err = hardwareAddr(n.Node, netlab.Device)
	return a, err
}

// flood sends forged SYNs to services in turn until ctx ends, rate per second in total. It returns the number of sent
// SYNs.
func (a *attacker) flood(ctx context.Context, services []netip.AddrPort, rate int) (sent int, err error) {
	err = a.link.Do(func() error {
		f, err := forge.Open(forge.Config{
			Device: a.port, From: a.from, To: a.to, Sources: forgedSources, Services: services,
		})
		if err != nil {
			return err
		}
		sent, err = f.Send(ctx, math.MaxInt, rate)
		return errors.Join(err, f.Close())
	})
	return sent, err
}

// prepare gives the attacked device of a node a queue for each processor, and lets the answers to forged SYNs end where
// the link begins: on a real network they would leave the machines.
func (a *attacker) prepare(at target) (io.Closer, error) {
	if err := at.node.Do(func() error { return forge.SpreadQueues(at.device) }); err != nil {
		return nil, err
	}
	var answers io.Closer
	err := a.link.Do(func() (err error) {
		answers, err = forge.Absorb(a.port, forgedSources)
		return err
	})
	return answers, err
}

// target is what a flood attacks: services, and the device at which a node receives their packets.
type target struct {
	services []netip.AddrPort
	node     *netlab.Namespace
	device   string
}

// during floods services while f runs, for the time and at the rate of the parameters. It counts into p.
func (a *attacker) during(ctx context.Context, at target, params Params, p *Part, f func(context.Context)) error {
	answers, err := a.prepare(at)
	if err != nil {
		return err
	}
	defer answers.Close()
	ctx, cancel := context.WithTimeout(ctx, params.Time)
	defer cancel()
	var group sync.WaitGroup
	group.Go(func() {
		var before, after int
		if before, err = received(at.node, at.device); err != nil {
			return
		}
		begin := time.Now()
		p.Sent, err = a.flood(ctx, at.services, params.Rate)
		p.Seconds = time.Since(begin).Seconds()
		if err == nil {
			after, err = received(at.node, at.device)
		}
		p.Arrived = after - before
	})
	f(ctx)
	group.Wait()
	return err
}

// scanPorts are the ports that a scan tries.
var scanPorts = []uint16{22, 80, 443, 8080}

// scanPause is the mean pause between two SYNs of a scan: late ones are followed by others at once, so that a scan
// takes no longer on a busy machine. A client's proof holds for 10 s, and the next scan has to come before its end.
const scanPause = time.Millisecond

// scan sends one SYN from the host's own address to each port of each address of a range, as a half-open scan does: the
// host answers a SYN-ACK by RST. It returns how many were sent.
func (a *attacker) scan(ctx context.Context, addresses netip.Prefix) (sent int, err error) {
	err = a.link.Do(func() error {
		port, err := net.InterfaceByName(a.port)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("scan: packet socket: %w", err)
		}
		defer unix.Close(fd)
		to := &unix.SockaddrLinklayer{Ifindex: port.Index}
		begin := time.Now()
		for at := addresses.Masked().Addr(); addresses.Contains(at); at = at.Next() {
			for _, p := range scanPorts {
				if err := lab.Sleep(ctx, time.Until(begin.Add(time.Duration(sent)*scanPause))); err != nil {
					return err
				}
				frame := forge.SYN(a.from, a.to, a.source, netip.AddrPortFrom(at, p))
				if err := unix.Sendto(fd, frame, 0, to); err != nil {
					return fmt.Errorf("scan %v at %s: %w", at, a.port, err)
				}
				sent++
			}
		}
		return nil
	})
	return sent, err
}

// vanish connects n clients from a host to a service, and lets them vanish: their sockets are closed without a packet.
func vanish(ctx context.Context, host *netlab.Namespace, service netip.AddrPort, n int) error {
	var group sync.WaitGroup
	var mu sync.Mutex
	var first error
	next := make(chan int, n)
	for i := range n {
		next <- firstPort + i
	}
	close(next)
	for range 16 {
		group.Go(func() {
			for port := range next {
				if err := vanishOne(ctx, host, service, port); err != nil {
					mu.Lock()
					first = errors.Join(first, err)
					mu.Unlock()
					return
				}
			}
		})
	}
	group.Wait()
	return first
}

// firstPort is the source port of the first client that vanishes; the others have those after it.
const firstPort = 20_000

func vanishOne(ctx context.Context, host *netlab.Namespace, service netip.AddrPort, port int) error {
	dialer := host.Dialer()
	dialer.LocalAddr = &net.TCPAddr{IP: host.Addr.AsSlice(), Port: port}
	conn, err := dialer.DialContext(ctx, "tcp4", service.String())
	if err != nil {
		return fmt.Errorf("a client that is to vanish: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	if ctlErr := raw.Control(func(fd uintptr) {
		// A socket under repair is closed silently.
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1)
	}); ctlErr != nil {
		return ctlErr
	}
	if err != nil {
		return fmt.Errorf("let a client vanish (TCP_REPAIR): %w", err)
	}
	return nil
}
