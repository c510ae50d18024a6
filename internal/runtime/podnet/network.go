// SPDX-License-Identifier: Apache-2.0

package podnet

import (
	"log/slog"
	"net/netip"
)

// Gateway is the next hop of every pod's default route. No device has this address.
var Gateway = netip.MustParseAddr("169.254.46.1")

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
	// Ready is the number of networks that Refill keeps ready. With 0, each network is made when it is taken.
	Ready int
	// MTU is the MTU of both ends, in bytes. 0 means 1500.
	MTU int
	// Log receives failures in the background. Required.
	Log *slog.Logger
}

// Network is the network of one pod.
type Network struct {
	// Name is the name of the host's device and of the file in Config.Dir.
	Name string
	// Netns is the path at which the pod's network namespace is bound.
	Netns string
	// Addr is the pod's address.
	Addr netip.Addr
	// HostDevice is the interface index of the host's device.
	HostDevice int
}
