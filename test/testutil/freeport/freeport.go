// SPDX-License-Identifier: Apache-2.0

// Package freeport reserves ports for tests that pass a port to a program.
package freeport

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Reserve returns a port of 127.0.0.1 at which nothing listens. Until the end of the test, the kernel does not assign
// it to a socket that asks for any port. Connections are refused until a program listens there, which it can if it sets
// SO_REUSEADDR, as servers do.
func Reserve(t testing.TB) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(os.NewSyscallError("socket", err))
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		t.Fatal(os.NewSyscallError("setsockopt", err))
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(os.NewSyscallError("bind", err))
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(os.NewSyscallError("getsockname", err))
	}
	at, ok := name.(*unix.SockaddrInet4)
	if !ok {
		t.Fatal(fmt.Errorf("the socket has the address %v", name))
	}
	return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
}
