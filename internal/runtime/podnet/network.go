// SPDX-License-Identifier: Apache-2.0

package podnet

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Gateway is the next hop of every pod's default route. No device has this address.
var Gateway = netip.MustParseAddr("169.254.46.1")

// Links is the range of link-local addresses (RFC 3927), to which Gateway belongs.
var Links = netip.MustParsePrefix("169.254.0.0/16")

// Device is the name of a pod's network device inside its namespace.
const Device = "eth0"

// Config configures a Pool.
type Config struct {
	// Dir is the folder in which the namespaces are bound, one file each. It is created, and must be on a file system that
	// does not survive a reboot. Required.
	Dir string
	// Addresses is the range of the pods' addresses: IPv4, at least a /30. Required.
	Addresses netip.Prefix
	// DevicePrefix starts the name of the host's end of every veth pair, with at most 7 bytes. Pools in one network
	// namespace need different prefixes, because Clean removes unknown devices with the pool's prefix. Required.
	DevicePrefix string
	// FormerPrefix is what an earlier version had as DevicePrefix, in as many bytes; empty: nothing. NewPool renames such
	// devices. The networks keep their names.
	FormerPrefix string
	// Ready is the number of networks that Refill keeps ready. With 0, each network is made when it is taken.
	Ready int
	// MTU is the MTU of both ends, in bytes. 0 means 1500.
	MTU int
	// Forward makes the kernel forward packets that the pods send to other networks.
	Forward bool
	// Attach is called for each network that is made or adopted, and Detach before it is removed; both may be nil.
	Attach func(Network) error
	Detach func(name string)
	// Log receives failures in the background. Required.
	Log *slog.Logger
}

// owns reports whether a device is the host's end of a network of this pool.
func (c Config) owns(l netlink.Link) bool {
	return l.Type() == "veth" && strings.HasPrefix(l.Attrs().Name, c.DevicePrefix)
}

// device returns the name of the host's device of a network.
func (c Config) device(network string) string {
	if rest, former := strings.CutPrefix(network, c.FormerPrefix); former && c.FormerPrefix != "" {
		return c.DevicePrefix + rest
	}
	return network
}

// RenameDevices gives the hosts' ends of veth pairs whose names start with former another prefix of the same length, in
// the network namespace of the calling thread. Routes, addresses and programs stay, and nothing is interrupted: Linux
// renames devices that are up from version 6.2 on.
func RenameDevices(former, prefix string) error {
	if former == "" || former == prefix {
		return nil
	}
	if len(former) != len(prefix) {
		return fmt.Errorf("device prefixes %q and %q differ in length", former, prefix)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	var errs []error
	for _, l := range links {
		rest, ours := strings.CutPrefix(l.Attrs().Name, former)
		if l.Type() != "veth" || !ours {
			continue
		}
		if err := netlink.LinkSetName(l, prefix+rest); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("rename device %s to %s: %w", l.Attrs().Name, prefix+rest, err))
		}
	}
	return errors.Join(errs...)
}

// Network is the network of one pod.
type Network struct {
	// Name is the name of the file in Config.Dir and, but for networks of an earlier version, of the host's device.
	Name string
	// Netns is the path at which the pod's network namespace is bound.
	Netns string
	// Addr is the pod's address.
	Addr netip.Addr
	// HostDevice is the interface index of the host's device.
	HostDevice int
	// podMAC is the MAC address of the pod's device.
	podMAC [6]byte
}

// Do calls f on a thread in the pod's network namespace. Sockets that f opens stay in it, and keep it alive.
func (n Network) Do(f func() error) error {
	return onThread(func() error {
		ns, err := netns.GetFromPath(n.Netns)
		if err != nil {
			return fmt.Errorf("network namespace %s: %w", n.Netns, err)
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n.Netns, err)
		}
		return f()
	})
}
