// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"

	"github.com/google/nftables"
)

func TestFirewallThatDropsForwardedPacketsIsNamed(t *testing.T) {
	drop, accept := nftables.ChainPolicyDrop, nftables.ChainPolicyAccept
	ip := &nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4}
	ip6 := &nftables.Table{Name: "filter6", Family: nftables.TableFamilyIPv6}
	got := strings.Join(closedTo([]*nftables.Chain{
		{Name: "FORWARD", Table: ip, Hooknum: nftables.ChainHookForward, Policy: &drop},
		{Name: "INPUT", Table: ip, Hooknum: nftables.ChainHookInput, Policy: &drop},
		{Name: "OPEN", Table: ip, Hooknum: nftables.ChainHookForward, Policy: &accept},
		{Name: "FORWARD", Table: ip6, Hooknum: nftables.ChainHookForward, Policy: &drop},
		{Name: "plain", Table: ip},
	}), ", ")
	if got != "filter FORWARD" {
		t.Errorf("%q", got)
	}
}
