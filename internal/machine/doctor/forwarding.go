// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"

	"github.com/google/nftables"
)

// forwarding checks whether pods can reach other networks: whether the kernel has nf_tables, and whether tables of
// others drop packets that are forwarded. A packet has to be accepted by all tables.
func forwarding() Check {
	c := Check{Name: "nf_tables", Group: Network, For: "pods that reach other networks",
		Do: "load nf_tables, or give --egress=false to wangell up"}
	conn, err := nftables.New()
	if err != nil {
		return c.missing(err.Error())
	}
	chains, err := conn.ListChains()
	if err != nil {
		return c.missing(err.Error())
	}
	if closed := closedTo(chains); len(closed) > 0 {
		c.Do = "accept packets from and to devices wv* there, as with 'iptables -I FORWARD -i wv+ -j ACCEPT' and -o wv+"
		return c.warn(fmt.Sprintf("forwarded packets that no rule accepts are dropped by %s", strings.Join(closed, ", ")))
	}
	return c.ok("no table drops forwarded packets by default")
}

// closedTo returns the names of chains that drop forwarded IPv4 packets unless a rule accepts them.
func closedTo(chains []*nftables.Chain) (names []string) {
	for _, c := range chains {
		ip := c.Table.Family == nftables.TableFamilyIPv4 || c.Table.Family == nftables.TableFamilyINet
		forwards := c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward
		if ip && forwards && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
			names = append(names, c.Table.Name+" "+c.Name)
		}
	}
	return names
}
