// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// source is the address of InnerDevice on a machine without another. It is link-local (RFC 3927), and not in the
// service range, whose addresses the programs take for services.
var source = net.IPv4(169, 254, 46, 1).To4()

// setSource makes sure that programs on this machine have an address from which to reach services. If no device has one
// but lo, the kernel would send their packets from 0.0.0.0, to which nothing can be sent back; so InnerDevice gets one.
// Elsewhere it has none, because the kernel would prefer that address to the machine's own, which clients are known by.
func (d *devices) setSource() error {
	own := &netlink.Addr{IPNet: &net.IPNet{IP: source, Mask: net.CIDRMask(32, 32)}}
	inner := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: d.inner}}
	addrs, err := d.netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing this machine's addresses: %w", err)
	}
	for _, a := range addrs {
		// The kernel uses the address of another device unless it is valid on that link or on this host alone.
		if a.LinkIndex == d.inner || a.Scope >= unix.RT_SCOPE_LINK {
			continue
		}
		if err := d.netlink.AddrDel(inner, own); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("removing the address %v of %s: %w", own.IP, InnerDevice, err)
		}
		return nil
	}
	if err := d.netlink.AddrReplace(inner, own); err != nil {
		return fmt.Errorf("adding the address %v to %s: %w", own.IP, InnerDevice, err)
	}
	return nil
}
