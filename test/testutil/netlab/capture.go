// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// captureLimit is the number of packets that a Capture keeps.
const captureLimit = 1 << 16

// Packet is a captured frame.
type Packet struct {
	// At is when the capture read the frame, shortly after it passed.
	At time.Time
	// Outgoing is whether the namespace sent the frame.
	Outgoing bool
	// Data is the frame, beginning with the Ethernet header.
	Data []byte
}

// Decode decodes the frame with gopacket.
func (p Packet) Decode() gopacket.Packet {
	return gopacket.NewPacket(p.Data, layers.LayerTypeEthernet, gopacket.Default)
}

// TCP returns the IPv4 and TCP headers of the frame. ok is false if it has none.
func (p Packet) TCP() (ip *layers.IPv4, tcp *layers.TCP, ok bool) {
	d := p.Decode()
	ip, _ = d.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	tcp, _ = d.Layer(layers.LayerTypeTCP).(*layers.TCP)
	return ip, tcp, ip != nil && tcp != nil
}

// Capture records all frames that pass a device (packet(7)). Frames that an XDP program of the device drops, sends or
// redirects are not seen there: capture them at a client or at the port of the link.
type Capture struct {
	file *os.File
	done chan struct{}

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every packet
	packets []Packet
	err     error
}

// Capture starts a capture at a device of the namespace. The caller ends it with Close.
func (ns *Namespace) Capture(device string) (*Capture, error) {
	var fd int
	err := ns.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		// Protocol 0 receives nothing before bind, so no frame of another device is captured.
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		// Room for bursts, as far as the kernel allows.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		all := uint16(unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8) // network byte order
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index}); err != nil {
			unix.Close(fd)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("capture at %s of %s: %w", device, ns.Name, err)
	}
	c := &Capture{file: os.NewFile(uintptr(fd), "capture"), done: make(chan struct{}), changed: make(chan struct{})}
	raw, err := c.file.SyscallConn()
	if err != nil {
		c.file.Close()
		return nil, err
	}
	go c.run(raw)
	return c, nil
}

func (c *Capture) run(raw syscall.RawConn) {
	defer close(c.done)
	buf := make([]byte, 1<<17)
	for {
		var n int
		var from unix.Sockaddr
		var err error
		readErr := raw.Read(func(fd uintptr) bool {
			n, from, err = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(err, unix.EAGAIN)
		})
		if readErr != nil { // closed
			return
		}
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN) { // ENETDOWN: the device is gone or down
			continue
		}
		p := Packet{At: time.Now(), Data: append([]byte(nil), buf[:max(n, 0)]...)}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok {
			p.Outgoing = ll.Pkttype == unix.PACKET_OUTGOING
		}
		c.mu.Lock()
		switch {
		case err != nil:
			c.err = err
		case len(c.packets) == captureLimit:
			c.err = fmt.Errorf("more than %d packets", captureLimit)
		default:
			c.packets = append(c.packets, p)
		}
		stop := c.err != nil
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
		if stop {
			return
		}
	}
}

// Packets returns the packets captured so far.
func (c *Capture) Packets() []Packet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Packet(nil), c.packets...)
}

// Wait returns the first packet, captured already or later, for which match returns true.
func (c *Capture) Wait(ctx context.Context, match func(Packet) bool) (Packet, error) {
	for seen := 0; ; {
		c.mu.Lock()
		packets, changed, err := c.packets, c.changed, c.err
		c.mu.Unlock()
		for ; seen < len(packets); seen++ {
			if match(packets[seen]) {
				return packets[seen], nil
			}
		}
		if err != nil {
			return Packet{}, fmt.Errorf("capture: %w", err)
		}
		select {
		case <-changed:
		case <-c.done:
			return Packet{}, errors.New("capture: closed before the packet arrived")
		case <-ctx.Done():
			return Packet{}, fmt.Errorf("capture: no such packet among %d: %w", seen, ctx.Err())
		}
	}
}

// Close ends the capture and returns all packets. It returns an error if the capture missed any.
func (c *Capture) Close() ([]Packet, error) {
	var missed uint32
	if raw, err := c.file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if s, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
				missed = s.Drops
			}
		})
	}
	c.file.Close()
	<-c.done
	if c.err == nil && missed > 0 {
		c.err = fmt.Errorf("%d packets missed", missed)
	}
	if c.err != nil {
		return c.packets, fmt.Errorf("capture: %w", c.err)
	}
	return c.packets, nil
}
