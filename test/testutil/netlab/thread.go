// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// onThread runs f locked to an OS thread and restores the thread's network namespace afterwards.
func onThread(f func() error) error {
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the thread's network namespace: %w", err)
	}
	defer before.Close()
	defer func() {
		if err := netns.Set(before); err != nil {
			// A thread in the wrong namespace must never run another goroutine.
			panic(fmt.Sprintf("restore the thread's network namespace: %v", err))
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

// threadCookie returns the cookie of the calling thread's namespace.
func threadCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read the network namespace's cookie (Linux 5.14 or later): %w", err)
	}
	return cookie, nil
}
