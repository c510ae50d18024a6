// SPDX-License-Identifier: Apache-2.0

package podnet

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// behalfTable is the routing table of ReceiveAll, and the priority of the rule that selects it.
const behalfTable = 46

// ReceiveAll delivers all IPv4 packets that reach the network's device to its own sockets, whatever their
// destination. So a proxy with IP_TRANSPARENT (ip(7)) gets the replies to packets that it sends from its clients'
// addresses. Sockets may use local ports from 1024 on, which IP_LOCAL_PORT_RANGE narrows. It may be called again. It
// needs a kernel with CONFIG_IP_MULTIPLE_TABLES.
func (n Network) ReceiveAll() error {
	return n.Do(func() error {
		if err := setSysctl("ipv4/ip_local_port_range", "1024 60999"); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find lo: %w", err)
		}
		everything := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		if err := netlink.RouteReplace(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: everything, Table: behalfTable, Type: unix.RTN_LOCAL,
			Scope: netlink.SCOPE_HOST,
		}); err != nil {
			return fmt.Errorf("add route: %w", err)
		}
		rules, err := netlink.RuleListFiltered(netlink.FAMILY_V4, &netlink.Rule{Table: behalfTable}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return fmt.Errorf("list routing rules: %w", err)
		}
		if len(rules) > 0 {
			return nil
		}
		rule := netlink.NewRule()
		rule.Family, rule.IifName, rule.Table, rule.Priority = netlink.FAMILY_V4, Device, behalfTable, behalfTable
		if err := netlink.RuleAdd(rule); err != nil {
			return fmt.Errorf("add routing rule: %w", err)
		}
		return nil
	})
}
