// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"wangell.loutres.me/test/testutil/delay"
	"wangell.loutres.me/test/testutil/netlab"
)

// newDelay makes packets of a host to the services arrive at the node after a time.
func newDelay(host, node *netlab.Namespace, services netip.Prefix, by time.Duration) (d *delay.Delay, err error) {
	to, err := hardwareAddr(node, netlab.Device)
	if err != nil {
		return nil, err
	}
	err = host.Do(func() error {
		d, err = delay.Open(delay.Config{
			Device: netlab.Device, Source: host.Addr, To: to, Network: services, By: by,
		})
		return err
	})
	return d, err
}

// received returns how many packets a host's device has received.
func received(host *netlab.Namespace, device string) (n int, err error) {
	err = host.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err == nil {
			n = int(link.Attrs().Statistics.RxPackets)
		}
		return err
	})
	return n, err
}

// hardwareAddr returns the MAC address of a host's device.
func hardwareAddr(host *netlab.Namespace, device string) (addr net.HardwareAddr, err error) {
	err = host.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err == nil {
			addr = link.Attrs().HardwareAddr
		}
		return err
	})
	return addr, err
}
