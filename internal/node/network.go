// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// podNetwork is a pod's device as seen from both ends.
type podNetwork struct {
	hostIfindex int              // host end
	mac         net.HardwareAddr // pod's end
	hostMAC     net.HardwareAddr // host end
}

// findNetwork finds the device that has a pod's address in the pod's network namespace, and its other end
// here. It holds for every veth- or netkit-based network, whoever made it.
func findNetwork(path string, addr netip.Addr) (podNetwork, error) {
	if path == "" {
		return podNetwork{}, fmt.Errorf("pod %v: no network namespace was told", addr)
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return podNetwork{}, fmt.Errorf("pod %v: opening its network namespace %s: %w", addr, path, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return podNetwork{}, fmt.Errorf("pod %v: asking its network namespace %s: %w", addr, path, err)
	}
	defer h.Close()
	addrs, err := h.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return podNetwork{}, fmt.Errorf("pod %v: listing addresses in %s: %w", addr, path, err)
	}
	for _, a := range addrs {
		if got, ok := netip.AddrFromSlice(a.IP); !ok || got.Unmap() != addr {
			continue
		}
		dev, err := h.LinkByIndex(a.LinkIndex)
		if err != nil {
			return podNetwork{}, fmt.Errorf("pod %v: looking at its device: %w", addr, err)
		}
		host, err := netlink.LinkByIndex(dev.Attrs().ParentIndex)
		if err != nil {
			return podNetwork{}, fmt.Errorf("pod %v: its device %s has no other end here: %w: its network must be veth or netkit", addr, dev.Attrs().Name, err)
		}
		return podNetwork{host.Attrs().Index, dev.Attrs().HardwareAddr, host.Attrs().HardwareAddr}, nil
	}
	return podNetwork{}, fmt.Errorf("pod %v: no device in %s has this address", addr, path)
}

// inNetns runs f on a thread that is in a network namespace.
func inNetns(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and with it its namespace.
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			done <- fmt.Errorf("entering a network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// cookieOf returns the cookie of the network namespace of a socket (SO_NETNS_COOKIE, Linux 5.14).
func cookieOf(fd int) (uint64, error) {
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("reading a network namespace's cookie: %w", err)
	}
	return c, nil
}
