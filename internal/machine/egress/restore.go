// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"wangell.loutres.me/internal/base/upkeep"
)

// Kinds of what this package sets up on the machine, as Restored counts them.
const (
	partTable  = "table"  // of nftables
	partRoute  = "route"  // for pod addresses that lead nowhere
	partSysctl = "sysctl" // forwarding of the machine's devices, and loopback addresses on the gate's
)

// Restored returns how often something was put back that somebody else had removed or changed, by kind: table, route
// and sysctl.
func (e *Egress) Restored() map[string]uint64 { return e.upkeep.Counts() }

// parts lists what this package has set up.
func (e *Egress) parts() []upkeep.Part {
	parts := []upkeep.Part{
		{
			Kind: partTable, Name: e.cfg.table().Name,
			Intact: func() (bool, error) {
				now, err := e.cfg.readTable()
				return err == nil && reflect.DeepEqual(now, e.table), err
			},
			Put: e.apply,
		},
		{
			Kind: partRoute, Name: e.cfg.Pods.String(),
			Intact: e.hasRoute,
			Put:    func() error { return netlink.RouteReplace(e.cfg.unreachable()) },
		},
	}
	for _, device := range e.rules.switched {
		parts = append(parts, upkeep.Part{
			Kind: partSysctl, Name: sysctlForwarding(device),
			Intact: func() (bool, error) { return upkeep.SettingIs(sysctlForwarding(device), "1") },
			Put:    func() error { return setForwarding(device, true) },
		})
	}
	if len(e.rules.published) > 0 {
		parts = append(parts, upkeep.Part{
			Kind: partSysctl, Name: sysctlLocalnet,
			Intact: func() (bool, error) { return upkeep.SettingIs(sysctlLocalnet, "1") },
			Put:    e.acceptLoopback,
		})
	}
	return parts
}

// hasRoute reports whether the route for pod addresses that lead nowhere exists.
func (e *Egress) hasRoute() (bool, error) {
	r := e.cfg.unreachable()
	have, err := netlink.RouteListFiltered(netlink.FAMILY_V4, r, netlink.RT_FILTER_DST|netlink.RT_FILTER_TYPE)
	if err != nil {
		return false, fmt.Errorf("read the machine's routes: %w", err)
	}
	return slices.ContainsFunc(have, func(h netlink.Route) bool { return h.Priority == r.Priority }), nil
}

// tableContent identifies the content of a table: the handles of the rules of each chain, which the kernel never
// reuses, and the elements of each set.
type tableContent struct {
	rules    map[string][]uint64
	elements map[string][]string
}

// readTable reads what the table holds; it is empty if there is none.
func (c Config) readTable() (t tableContent, err error) {
	t = tableContent{map[string][]uint64{}, map[string][]string{}}
	conn, err := nftables.New()
	if err != nil {
		return t, fmt.Errorf("nftables: %w", err)
	}
	chains, err := conn.ListChainsOfTableFamily(c.table().Family)
	if err != nil {
		return t, fmt.Errorf("nftables: list chains: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name != c.table().Name {
			continue
		}
		rules, err := conn.GetRules(c.table(), chain)
		if err != nil {
			return t, fmt.Errorf("nftables: list the rules of %s: %w", chain.Name, err)
		}
		handles := []uint64{}
		for _, r := range rules {
			handles = append(handles, r.Handle)
		}
		t.rules[chain.Name] = handles
	}
	if len(t.rules) == 0 {
		return t, nil
	}
	sets, err := conn.GetSets(c.table())
	if err != nil {
		return t, fmt.Errorf("nftables: list sets: %w", err)
	}
	for _, s := range sets {
		elements, err := conn.GetSetElements(s)
		if err != nil {
			return t, fmt.Errorf("nftables: read the set %s: %w", s.Name, err)
		}
		keys := []string{}
		for _, e := range elements {
			keys = append(keys, hex.EncodeToString(e.Key))
		}
		slices.Sort(keys)
		t.elements[s.Name] = keys
	}
	return t, nil
}
