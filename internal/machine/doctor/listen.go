// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// listenEventTimeout is how long the event of a listening socket may take to arrive.
const listenEventTimeout = 10 * time.Second

// tryListenEvent makes a socket listen in the current network namespace and waits until a program at the tracepoint
// inet_sock_set_state has written the namespace's cookie to a ring buffer.
func tryListenEvent() error {
	events, err := ebpf.NewMap(&ebpf.MapSpec{Name: "wg_doctor", Type: ebpf.RingBuf, MaxEntries: 64 << 10})
	if err != nil {
		return fmt.Errorf("make a ring buffer: %w", err)
	}
	defer events.Close()
	insns, err := cookieProgram(events)
	if err != nil {
		return err
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "wg_doctor", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp,
		AttachTo: "inet_sock_set_state", License: "GPL", Instructions: insns,
	})
	if err != nil {
		return fmt.Errorf("load a program for inet_sock_set_state: %w", err)
	}
	defer prog.Close()
	l, err := link.AttachTracing(link.TracingOptions{Program: prog})
	if err != nil {
		return fmt.Errorf("attach to inet_sock_set_state: %w", err)
	}
	defer l.Close()
	reader, err := ringbuf.NewReader(events)
	if err != nil {
		return fmt.Errorf("read the ring buffer: %w", err)
	}
	defer reader.Close()

	cookie, err := listenOnce()
	if err != nil {
		return err
	}
	reader.SetDeadline(time.Now().Add(listenEventTimeout))
	for {
		record, err := reader.Read()
		if err != nil {
			return fmt.Errorf("no event for a listening socket: %w", err)
		}
		// Sockets of the whole machine make events here; only ours has this cookie.
		if len(record.RawSample) >= 8 && binary.NativeEndian.Uint64(record.RawSample) == cookie {
			return nil
		}
	}
}

// cookieProgram returns a program that writes the network namespace cookie (u64, native byte order) of the tracepoint's
// socket to a ring buffer.
func cookieProgram(events *ebpf.Map) (asm.Instructions, error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("read the kernel's BTF: %w", err)
	}
	common, err := memberOffset(spec, "sock", "__sk_common")
	if err != nil {
		return nil, err
	}
	netPtr, err := memberOffset(spec, "sock_common", "skc_net")
	if err != nil {
		return nil, err
	}
	cookie, err := memberOffset(spec, "net", "net_cookie")
	if err != nil {
		return nil, err
	}
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord), // the first argument: struct sock *
		asm.LoadMem(asm.R1, asm.R1, common+netPtr, asm.DWord),
		asm.LoadMem(asm.R1, asm.R1, cookie, asm.DWord),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, events.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.Mov.Imm(asm.R3, 8),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}, nil
}

// memberOffset returns the offset in bytes of a member of a kernel structure.
func memberOffset(spec *btf.Spec, structure, member string) (int16, error) {
	var s *btf.Struct
	if err := spec.TypeByName(structure, &s); err != nil {
		return 0, fmt.Errorf("struct %s: %w", structure, err)
	}
	for _, m := range s.Members {
		if m.Name == member {
			return int16(m.Offset.Bytes()), nil
		}
	}
	return 0, fmt.Errorf("struct %s has no member %s", structure, member)
}

// listenOnce makes a socket enter LISTEN in the calling thread's network namespace and returns the cookie of that
// namespace.
func listenOnce() (uint64, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return 0, fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return 0, fmt.Errorf("set lo up: %w", err)
	}
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	raw, err := listener.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cookie uint64
	var optErr error
	err = raw.Control(func(fd uintptr) {
		cookie, optErr = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	})
	if err := errors.Join(err, optErr); err != nil {
		return 0, fmt.Errorf("cookie of the network namespace: %w", err)
	}
	return cookie, nil
}
