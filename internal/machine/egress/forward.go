// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// toSwitch returns the devices at which forwarding is on only because of this package, or must be switched on.
// devices are the devices of the machine's routes, before is the last result.
//
// In a machine that is a router itself (net.ipv4.ip_forward), there are none: forwarding was switched on at all devices
// by somebody who wants the machine to forward packets.
func toSwitch(devices, before []string, forwards func(device string) bool) (out []string) {
	if forwards("all") {
		return nil
	}
	for _, device := range devices {
		if !forwards(device) || slices.Contains(before, device) {
			out = append(out, device)
		}
	}
	// A device without routes is switched off with the others at the end.
	for _, device := range before {
		if !slices.Contains(out, device) && forwards(device) {
			out = append(out, device)
		}
	}
	slices.Sort(out)
	return out
}

// uplinks returns the devices of the machine's routes.
func (c Config) uplinks() ([]string, error) {
	// A table of zero matches all tables.
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("read the machine's routes: %w", err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("read the machine's devices: %w", err)
	}
	leads := map[int]bool{}
	for _, r := range routes {
		if r.Table == unix.RT_TABLE_LOCAL || r.Type != unix.RTN_UNICAST {
			continue
		}
		leads[r.LinkIndex] = true
		for _, hop := range r.MultiPath {
			leads[hop.LinkIndex] = true
		}
	}
	var names []string
	for _, l := range links {
		name := l.Attrs().Name
		if leads[l.Attrs().Index] && name != "lo" && name != gateDevice && !strings.HasPrefix(name, c.DevicePrefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// readSwitched returns the devices that the tables have recorded as switched on; none if there is no table.
func (c Config) readSwitched() (names []string, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	for _, t := range c.tables() {
		more, err := switchedIn(conn, t)
		if err != nil {
			return nil, err
		}
		names = append(names, more...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// switchedIn returns the devices that a table has recorded as switched on.
func switchedIn(conn *nftables.Conn, t *nftables.Table) ([]string, error) {
	set, err := conn.GetSetByName(t, setSwitched)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
		return nil, fmt.Errorf("nftables: read the set %s: %w", setSwitched, err)
	}
	elements, err := conn.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("nftables: read the set %s: %w", setSwitched, err)
	}
	var names []string
	for _, e := range elements {
		names = append(names, strings.TrimRight(string(e.Key), "\x00"))
	}
	return names, nil
}

// missing reports whether an error says that the kernel has no nf_tables.
func missing(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// subscribe returns a channel that gets a value after changes of devices, routes and forwarding in the network
// namespace of the calling thread.
func subscribe() (<-chan struct{}, func(), error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_NETCONF)
	if err != nil {
		return nil, func() {}, fmt.Errorf("follow the machine's routes: %w", err)
	}
	changes := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			// A full buffer (ENOBUFS) is a change as well.
			_, _, err := s.Receive()
			if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
				return
			}
			select {
			case changes <- struct{}{}:
			default:
			}
		}
	}()
	return changes, func() { s.Close(); <-done }, nil
}

func sysctlForwarding(device string) string {
	return "/proc/sys/net/ipv4/conf/" + device + "/forwarding"
}

// forwards reports whether the kernel forwards packets from a device; of "all", whether the machine is a router.
func forwards(device string) bool {
	text, err := os.ReadFile(sysctlForwarding(device))
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

func setForwarding(device string, on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	if err := os.WriteFile(sysctlForwarding(device), []byte(value), 0); err != nil {
		return fmt.Errorf("forwarding of %s: %w", device, err)
	}
	return nil
}
