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

// podNetwork describes both ends of a pod's network device.
type podNetwork struct {
	hostIfindex int              // of the host's end
	mac         net.HardwareAddr // of the pod's end
	hostMAC     net.HardwareAddr // of the host's end
}

// findNetwork finds the device with a pod's address in the pod's network namespace, and the device's other end in this
// one. It works with every network plugin that uses veth or netkit.
func findNetwork(path string, addr netip.Addr) (podNetwork, error) {
	if path == "" {
		return podNetwork{}, fmt.Errorf("pod %v: the controller sent no network namespace", addr)
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return podNetwork{}, fmt.Errorf("pod %v: opening its network namespace %s: %w", addr, path, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return podNetwork{}, fmt.Errorf("pod %v: opening a netlink socket in %s: %w", addr, path, err)
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
			return podNetwork{}, fmt.Errorf("pod %v: looking up its device in %s: %w", addr, path, err)
		}
		host, err := netlink.LinkByIndex(dev.Attrs().ParentIndex)
		if err != nil {
			return podNetwork{}, fmt.Errorf("pod %v: its device %s has no other end on the host: %w: "+
				"use a network plugin with veth or netkit", addr, dev.Attrs().Name, err)
		}
		return podNetwork{host.Attrs().Index, dev.Attrs().HardwareAddr, host.Attrs().HardwareAddr}, nil
	}
	return podNetwork{}, fmt.Errorf("pod %v: no device in %s has this address", addr, path)
}

// inNetns runs f on a thread in a network namespace.
func inNetns(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread is never unlocked, so it ends with the goroutine and nothing else runs in its namespace.
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			done <- fmt.Errorf("entering a network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// cookieOf returns the cookie of a socket's network namespace (SO_NETNS_COOKIE, since Linux 5.14).
func cookieOf(fd int) (uint64, error) {
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("reading the cookie of a network namespace: %w", err)
	}
	return c, nil
}
