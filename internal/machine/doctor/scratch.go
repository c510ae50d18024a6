// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Names of the devices in a temporary network namespace.
const (
	scratchDevice = "wvscratch0"
	scratchPeer   = "wvscratch1"
)

// inScratch calls f on a thread in a new network namespace. The namespace has no name, so it disappears with everything
// in it once the thread has left it and f has closed its files.
func inScratch(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- scratchThread(f) }()
	return <-done
}

func scratchThread(f func() error) (err error) {
	runtime.LockOSThread()
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer unix.Close(home)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("create network namespace: %w", err)
	}
	defer func() {
		// If the thread cannot return, it stays locked and ends with this goroutine.
		if back := unix.Setns(home, unix.CLONE_NEWNET); back != nil {
			err = fmt.Errorf("return to own network namespace: %w", back)
			return
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

// scratchVeth creates a veth pair in the calling thread's network namespace, sets both ends up, and returns the index
// of one end.
func scratchVeth() (int, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = scratchDevice
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: scratchPeer}
	if err := netlink.LinkAdd(veth); err != nil {
		return 0, fmt.Errorf("create a veth pair: %w", err)
	}
	for _, name := range []string{scratchDevice, scratchPeer} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return 0, fmt.Errorf("find veth %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return 0, fmt.Errorf("set veth %s up: %w", name, err)
		}
	}
	link, err := netlink.LinkByName(scratchDevice)
	if err != nil {
		return 0, fmt.Errorf("find veth %s: %w", scratchDevice, err)
	}
	return link.Attrs().Index, nil
}
