// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A flood of strangers' datagrams would fill the receive buffer in which those of sessions wait, and be read before
// them. So a server whose socket is from Listen has a second one at the same address, and the kernel puts each datagram
// into one of the two buffers: into the first if it is of a session by its ID, whose first half is a secret of the
// server, and into the second if it is anything else. A goroutine reads each. The program that divides them is a
// classic one, which takes no privileges (socket(7), SO_ATTACH_REUSEPORT_CBPF).

// Listen opens the UDP socket of a server at HOST:PORT, which a second one of the same user may share.
func Listen(address string) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
		})
	}}
	conn, err := lc.ListenPacket(context.Background(), "udp", address)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

// setApart returns a second socket at the address of conn, for datagrams that are not of sessions whose IDs begin with
// mark. It is nil if conn is not from Listen.
func setApart(conn *net.UDPConn, mark uint32) (*net.UDPConn, error) {
	shared := 0
	err := withSocket(conn, func(fd int) (err error) {
		shared, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT)
		return err
	})
	if err != nil || shared == 0 {
		return nil, err
	}
	program, err := bpf.Assemble(divide(mark))
	if err != nil {
		return nil, err
	}
	filters := make([]unix.SockFilter, len(program))
	for i, in := range program {
		filters[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	err = withSocket(conn, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
			&unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]})
	})
	if err != nil {
		return nil, fmt.Errorf("program that sets strangers apart: %w", err)
	}
	return Listen(conn.LocalAddr().String())
}

// divide returns the program that chooses a socket by the content of a datagram: 0, the first one, for sessions whose
// IDs begin with mark, otherwise 1.
func divide(mark uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtLen},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: dataHeader + tagSize, SkipTrue: 5},
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(clearStart(kindData)), SkipTrue: 3},
		bpf.LoadAbsolute{Off: clearHeader, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: mark, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 1},
	}
}

// withSocket calls f with the file descriptor of a socket.
func withSocket(conn *net.UDPConn, f func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, f)
}

// control calls f with the file descriptor of a connection.
func control(c syscall.RawConn, f func(fd int) error) (err error) {
	if failed := c.Control(func(fd uintptr) { err = f(int(fd)) }); failed != nil {
		return failed
	}
	return err
}

// newSessionID returns the ID of a new session, which begins with the server's mark. s.mu is held.
func (s *Server) newSessionID() uint64 {
	for {
		id := uint64(s.mark)<<32 | newID()&0xffffffff
		if s.peers[id] == nil && s.pending.ids[id] == nil {
			return id
		}
	}
}

// newMark returns the first half of the IDs of a server's sessions: random, and not 0.
func newMark() uint32 {
	for {
		if m := uint32(newID()); m != 0 {
			return m
		}
	}
}
