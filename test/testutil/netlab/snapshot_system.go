// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

func (s Snapshot) namespaces(scope Scope) error {
	entries, err := os.ReadDir(Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("snapshot of network namespaces: %w", err)
	}
	for _, e := range entries {
		if hasPrefix(e.Name(), scope.Namespaces) {
			s["network namespace "+e.Name()] = true
		}
	}
	return nil
}

func (s Snapshot) devices(scope Scope) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("snapshot of devices: %w", err)
	}
	for _, l := range links {
		if hasPrefix(l.Attrs().Name, scope.Devices) {
			s[fmt.Sprintf("device %s (index %d)", l.Attrs().Name, l.Attrs().Index)] = true
		}
	}
	return nil
}

func (s Snapshot) routes(scope Scope) error {
	if !scope.Routes {
		return nil
	}
	addrs, addrErr := netlink.AddrList(nil, netlink.FAMILY_ALL)
	// A table filter of zero matches all tables.
	routes, routeErr := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	rules, ruleErr := netlink.RuleList(netlink.FAMILY_ALL)
	if err := errors.Join(addrErr, routeErr, ruleErr); err != nil {
		return fmt.Errorf("snapshot of routes: %w", err)
	}
	for _, a := range addrs {
		s[fmt.Sprintf("address %s of device %d", a.IPNet, a.LinkIndex)] = true
	}
	for _, r := range routes {
		s[fmt.Sprintf("route %s table %d", r, r.Table)] = true
	}
	for _, r := range rules {
		s["rule "+r.String()] = true
	}
	return s.forwarding()
}

// forwarding adds the devices that packets are forwarded from, and the nftables tables.
func (s Snapshot) forwarding() error {
	devices, err := filepath.Glob("/proc/sys/net/ipv4/conf/*/forwarding")
	for _, d := range devices {
		if text, err := os.ReadFile(d); err == nil && strings.TrimSpace(string(text)) == "1" {
			s["forwarding of "+filepath.Base(filepath.Dir(d))] = true
		}
	}
	conn, tableErr := nftables.New()
	if err := errors.Join(err, tableErr); err != nil {
		return fmt.Errorf("snapshot of forwarding: %w", err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		return fmt.Errorf("snapshot of nftables: %w", err)
	}
	for _, t := range tables {
		s[fmt.Sprintf("nftables table %d %s", t.Family, t.Name)] = true
	}
	return nil
}

// mounts reads /proc/self/mountinfo (proc(5)): field 5 is the mount point, with spaces as \040.
func (s Snapshot) mounts(scope Scope) error {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return fmt.Errorf("snapshot of mounts: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if point := unescape.Replace(fields[4]); under(point, scope.Paths) {
			s["mount "+point] = true
		}
	}
	return lines.Err()
}

func (s Snapshot) cgroups(scope Scope) error {
	if len(scope.Cgroups) == 0 {
		return nil
	}
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && contains(path, scope.Cgroups) {
			s["cgroup "+path] = true
		}
		return ignoreGone(err)
	})
	if err != nil {
		return fmt.Errorf("snapshot of cgroups: %w", err)
	}
	return nil
}

func (s Snapshot) processes(scope Scope) error {
	all, err := processes()
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	ours := map[int]bool{}
	for _, p := range all {
		child := scope.OwnProcess && p.parent == os.Getpid()
		ours[p.pid] = p.pid != os.Getpid() && (child || contains(strings.Join(p.argv, " "), scope.Paths))
	}
	for grown := true; grown; { // descendants may have any pid
		grown = false
		for _, p := range all {
			if !ours[p.pid] && ours[p.parent] && p.pid != os.Getpid() {
				ours[p.pid], grown = true, true
			}
		}
	}
	for _, p := range all {
		if ours[p.pid] {
			s["process "+p.String()] = true
		}
	}
	return nil
}
