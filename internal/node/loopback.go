// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// loopback watches the loopback device of a network namespace for segments that ask a program something: connections
// made inside it, such as by kubectl port-forward, do not pass the gate. A packet socket (packet(7)) costs nothing
// until such a segment comes.
type loopback struct {
	file   *os.File
	raw    syscall.RawConn
	asked  func()
	again  chan struct{} // holds an element while the next segment is to be reported
	closed chan struct{}
	reader sync.WaitGroup
}

// watchLoopback calls asked, which must not block, for the first segment that asks a program something in the network
// namespace at a path, and for the first one after each drain. Its replies count as well.
func watchLoopback(path string, asked func()) (*loopback, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("opening its network namespace %s: %w", path, err)
	}
	defer ns.Close()
	l := &loopback{asked: asked, again: make(chan struct{}, 1), closed: make(chan struct{})}
	if err := inNetns(ns, func() (err error) { l.file, err = loopbackSocket(); return err }); err != nil {
		return nil, fmt.Errorf("watching the loopback device in its network namespace %s: %w", path, err)
	}
	if l.raw, err = l.file.SyscallConn(); err != nil {
		l.file.Close()
		return nil, err
	}
	l.reader.Go(l.read)
	return l, nil
}

// loopbackSocket opens a packet socket on the loopback device of this thread's network namespace, with asking as its
// filter.
func loopbackSocket() (*os.File, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	program, err := bpf.Assemble(asking)
	if err != nil {
		return nil, err
	}
	filter := make([]unix.SockFilter, len(program))
	for i, in := range program {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	// Protocol 0 receives nothing before the filter is there. SOCK_DGRAM: packets begin with the IP header.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0) // the minimum: one packet is enough
	}
	if err == nil {
		all := uint16(unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8) // network byte order
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: lo.Attrs().Index})
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "loopback"), nil
}

// asking lets one byte through of each arriving TCP segment that has data, begins a connection, or ends one. Extension
// headers of IPv6 are not followed.
var asking = []bpf.Instruction{
	bpf.LoadExtension{Num: bpf.ExtType},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 21},
	bpf.LoadExtension{Num: bpf.ExtProto},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipTrue: 5},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: 18},
	bpf.LoadAbsolute{Off: 9, Size: 1}, // protocol
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: 16},
	bpf.LoadMemShift{Off: 0}, // X: the length of the IP header
	bpf.Jump{Skip: 3},
	bpf.LoadAbsolute{Off: 6, Size: 1}, // next header
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: 12},
	bpf.LoadConstant{Dst: bpf.RegX, Val: 40},
	bpf.LoadIndirect{Off: 13, Size: 1}, // flags
	bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0x13},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x02, SkipTrue: 9},   // SYN without ACK
	bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x01, SkipTrue: 8}, // FIN
	bpf.LoadIndirect{Off: 12, Size: 1},                        // data offset, in words, and four other bits
	bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf0},            //
	bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 2},        // in bytes
	bpf.ALUOpX{Op: bpf.ALUOpAdd},                              //
	bpf.TAX{},                                                 // X: the length of both headers
	bpf.LoadExtension{Num: bpf.ExtLen},                        // of the packet
	bpf.JumpIfX{Cond: bpf.JumpGreaterThan, SkipTrue: 1},       //
	bpf.RetConstant{Val: 0},                                   //
	bpf.RetConstant{Val: 1},                                   //
}

// read reports segments until the socket is closed.
func (l *loopback) read() {
	for {
		err := l.raw.Read(func(fd uintptr) bool { return take(int(fd)) })
		if err != nil {
			return
		}
		l.asked()
		select {
		case <-l.again:
		case <-l.closed:
			return
		}
	}
}

// drain forgets the segments that have come until now. Call it before a look at the sockets: a segment that was taken
// before may still be on its way to its socket.
func (l *loopback) drain() {
	_ = l.raw.Control(func(fd uintptr) {
		for take(int(fd)) {
		}
	})
	notify(l.again)
}

// close ends the watch.
func (l *loopback) close() {
	close(l.closed)
	l.file.Close()
	l.reader.Wait()
}

// take removes a packet from a socket, and reports whether there was one. An error, such as when the device goes down,
// counts as a packet; it occurs once.
func take(fd int) bool {
	for {
		var b [1]byte
		if _, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT); !errors.Is(err, unix.EINTR) {
			return !errors.Is(err, unix.EAGAIN)
		}
	}
}
