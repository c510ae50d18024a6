// SPDX-License-Identifier: Apache-2.0

package strangers

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/test/testutil/netlab"
)

// sendBatch is how many frames are sent with one system call.
const sendBatch = 64

// priority is the nice value of the sending thread: a network card does not wait for the programs that it interrupts.
const priority = -15

// maxDebt is how far a flood that has fallen behind its rate catches up.
const maxDebt = 100 * time.Millisecond

// message is a struct mmsghdr (sendmmsg(2)).
type message struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// flood sends frames in turn by a device of a namespace, rate per second, until ctx ends. It returns how many it has
// sent.
func flood(ctx context.Context, in *netlab.Namespace, device string, frames [][]byte, rate int) (sent int, err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // for good: the thread ends with its goroutine
		if err = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), priority); err != nil {
			err = fmt.Errorf("raise the priority of the flood: %w", err)
			return
		}
		err = in.Do(func() (err error) {
			sent, err = send(ctx, device, frames, rate)
			return err
		})
	}()
	<-ended
	return sent, err
}

// send is flood in the network namespace of the calling thread.
func send(ctx context.Context, device string, frames [][]byte, rate int) (sent int, err error) {
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return 0, fmt.Errorf("flood: device %s: %w", device, err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("flood: packet socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: dev.Index}); err != nil {
		return 0, fmt.Errorf("flood: bind a packet socket to %s: %w", device, err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return 0, fmt.Errorf("flood: send without a queue: %w", err)
	}
	parts, messages := make([]unix.Iovec, len(frames)), make([]message, len(frames))
	for i, f := range frames {
		parts[i].Base = &f[0]
		parts[i].SetLen(len(f))
		messages[i].header.Iov = &parts[i]
		messages[i].header.SetIovlen(1)
	}
	begin, ahead := time.Now(), 0
	for ctx.Err() == nil {
		now := time.Now()
		due := begin.Add(time.Duration(ahead) * time.Second / time.Duration(rate))
		if late := now.Sub(due); late > maxDebt {
			begin = begin.Add(late - maxDebt)
		} else if late < 0 {
			_ = lab.Sleep(ctx, -late) // ctx is looked at above
			continue
		}
		first := ahead % len(frames)
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&messages[first])),
			uintptr(min(sendBatch, len(frames)-first)), 0, 0, 0)
		switch {
		case errno == 0:
			ahead, sent = ahead+int(n), sent+int(n)
		case errno != unix.EINTR && errno != unix.ENOBUFS && errno != unix.EAGAIN:
			return sent, fmt.Errorf("flood: send by %s: %w", device, errno)
		}
	}
	runtime.KeepAlive(parts)
	return sent, nil
}
