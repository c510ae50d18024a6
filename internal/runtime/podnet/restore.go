// SPDX-License-Identifier: Apache-2.0

package podnet

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/upkeep"
)

// Kinds of what this package sets up on the machine, as Restored counts them.
const (
	partSysctl   = "sysctl"   // settings of the host's device of a pod
	partLink     = "link"     // that device is up
	partNeighbor = "neighbor" // the pod's MAC address, at that device
	partRoute    = "route"    // to the pod's address, by that device
)

// Restored returns how often something was put back that somebody else had removed or changed, by kind: sysctl, link,
// neighbor and route.
func (p *Pool) Restored() map[string]uint64 { return p.upkeep.Counts() }

// Keep puts back what others have removed or changed of the networks on the machine's side. What pods change in their
// own network namespaces is theirs, and a device that is gone cannot be had again without them. The error, which is
// logged, says that the networks cannot be looked at.
func (p *Pool) Keep() error {
	p.keeping.Lock() // no network is removed meanwhile
	defer p.keeping.Unlock()
	p.mu.Lock()
	var networks []Network
	for _, n := range p.networks {
		networks = append(networks, n)
	}
	p.mu.Unlock()
	if len(networks) == 0 {
		return nil
	}
	var state *hostState
	var err error
	p.upkeep.Keep([]upkeep.Part{{Kind: "state", Name: "of all", Intact: func() (bool, error) {
		state, err = p.maker.hostState()
		return true, err
	}}})
	if err != nil {
		return err
	}
	slices.SortFunc(networks, func(a, b Network) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range networks {
		if link := state.links[n.HostDevice]; link != nil {
			p.upkeep.Keep(p.maker.hostParts(n, link, state))
		}
	}
	return nil
}

// hostState is what the machine has of all networks.
type hostState struct {
	links     map[int]netlink.Link       // by index
	neighbors map[neighbor]netlink.Neigh // permanent ones
	routes    map[netip.Addr]int         // devices by the addresses that routes of one address lead to
}

// neighbor names an entry of the table of neighbors.
type neighbor struct {
	device int
	addr   netip.Addr
}

// hostState reads the state of the network namespace of the machine.
func (m *maker) hostState() (*hostState, error) {
	s := &hostState{
		links: map[int]netlink.Link{}, neighbors: map[neighbor]netlink.Neigh{}, routes: map[netip.Addr]int{},
	}
	routes, err := m.host.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN},
		netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		if bits, _ := r.Dst.Mask.Size(); bits == 32 {
			addr, _ := netip.AddrFromSlice(r.Dst.IP.To4())
			s.routes[addr] = r.LinkIndex
		}
	}
	neighbors, err := m.host.NeighList(0, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list neighbors: %w", err)
	}
	for _, n := range neighbors {
		if addr, ok := netip.AddrFromSlice(n.IP.To4()); ok && n.State&netlink.NUD_PERMANENT != 0 {
			s.neighbors[neighbor{n.LinkIndex, addr}] = n
		}
	}
	links, err := m.host.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		s.links[l.Attrs().Index] = l
	}
	return s, nil
}

// hostParts lists what the machine has of a network, in the order in which it is set up. link is the network's device,
// and state, which may be nil when it is set up, what there is already. Only sysctls of the device itself are changed.
func (m *maker) hostParts(n Network, link netlink.Link, state *hostState) (parts []upkeep.Part) {
	device := link.Attrs().Name
	sysctl := func(name, value string) {
		name = strings.ReplaceAll(name, "DEVICE", device)
		parts = append(parts, upkeep.Part{
			Kind: partSysctl, Name: name,
			Intact: func() (bool, error) { return upkeep.SettingIs("/proc/sys/net/"+name, value) },
			Put:    func() error { return setHostSysctl(name, value) },
		})
	}
	sysctl("ipv6/conf/DEVICE/disable_ipv6", "1")
	sysctl("ipv4/conf/DEVICE/rp_filter", "0") // replies leave with the service address as source
	if m.cfg.Forward {
		sysctl("ipv4/conf/DEVICE/forwarding", "1")
	}
	mac := net.HardwareAddr(n.podMAC[:])
	return append(parts, upkeep.Part{
		Kind: partLink, Name: device,
		Intact: func() (bool, error) { return link.Attrs().Flags&net.FlagUp != 0, nil },
		Put: func() error {
			if err := m.host.LinkSetUp(link); err != nil {
				return fmt.Errorf("set %s up: %w", device, err)
			}
			return nil
		},
	}, upkeep.Part{
		Kind: partNeighbor, Name: n.Addr.String(),
		Intact: func() (bool, error) {
			have, ok := state.neighbors[neighbor{n.HostDevice, n.Addr}]
			return ok && bytes.Equal(have.HardwareAddr, mac), nil
		},
		Put: func() error {
			if err := m.host.NeighSet(permanent(n.HostDevice, n.Addr, mac)); err != nil {
				return fmt.Errorf("add neighbor %s: %w", n.Addr, err)
			}
			return nil
		},
	}, upkeep.Part{
		Kind: partRoute, Name: n.Addr.String(),
		Intact: func() (bool, error) { return state.routes[n.Addr] == n.HostDevice, nil },
		Put: func() error {
			// Replaced, because the address may still be routed to the device of a pod that is being removed.
			if err := m.host.RouteReplace(&netlink.Route{
				LinkIndex: n.HostDevice, Dst: hostNet(n.Addr), Scope: netlink.SCOPE_LINK,
			}); err != nil {
				return fmt.Errorf("add route to %s: %w", n.Addr, err)
			}
			return nil
		},
	})
}
