// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// injector sends frames through this node's devices.
type injector struct {
	fd    int // packet socket
	outer int // interface index of OuterDevice: frames sent there arrive on InnerDevice
}

func newInjector(outer int) (*injector, error) {
	// Protocol 0: the socket receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket: %w: this needs CAP_NET_RAW", err)
	}
	// Without a queueing discipline, frames stay in order and are not delayed.
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("setting up a packet socket: %w", err)
	}
	return &injector{fd: fd, outer: outer}, nil
}

// send sends an Ethernet frame through a device.
func (i *injector) send(ifindex int, frame []byte) error {
	to := &unix.SockaddrLinklayer{Ifindex: ifindex, Halen: 6, Protocol: binary.NativeEndian.Uint16(frame[12:])}
	copy(to.Addr[:], frame[:6])
	return unix.Sendto(i.fd, frame, 0, to)
}

func (i *injector) close() error { return unix.Close(i.fd) }
