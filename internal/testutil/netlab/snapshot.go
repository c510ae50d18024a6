// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Scope says what of the machine a Snapshot looks at, so that what others do at the same time does not disturb.
type Scope struct {
	// Paths are folders of ours (state and run dirs): mounts and pins below them, and processes that name one in
	// their command line, with their descendants, belong to us.
	Paths []string
	// Devices are how names of our devices begin, in the namespace of the caller.
	Devices []string
	// Routes adds the addresses, routes and policy rules (IPv4 and IPv6) of the caller's namespace.
	Routes bool
	// Namespaces are how names of our network namespaces in Dir begin.
	Namespaces []string
	// Cgroups are parts of the paths of our cgroups.
	Cgroups []string
	// BPF are how names of our eBPF programs and maps begin (as the kernel has them, at most 15 bytes). They are
	// looked for on the whole machine, so a process that loads the same programs meanwhile disturbs.
	BPF []string
	// OwnProcess adds the eBPF objects that this process holds open, and its child processes and their descendants.
	OwnProcess bool
}

// Snapshot is what there was of a Scope: a set of things, each with its kind in front ("mount /run/x").
type Snapshot map[string]bool

// TakeSnapshot looks at what there is.
func TakeSnapshot(scope Scope) (Snapshot, error) {
	s := Snapshot{}
	return s, errors.Join(s.namespaces(scope), s.devices(scope), s.routes(scope), s.mounts(scope), s.pins(scope), s.cgroups(scope),
		s.processes(scope), s.bpf(scope), s.ownBPF(scope))
}

// Diff tells what after has and s has not ("left: …"), and the other way round ("gone: …"), in order.
func (s Snapshot) Diff(after Snapshot) []string {
	var diff []string
	for thing := range after {
		if !s[thing] {
			diff = append(diff, "left: "+thing)
		}
	}
	for thing := range s {
		if !after[thing] {
			diff = append(diff, "gone: "+thing)
		}
	}
	sort.Strings(diff)
	return diff
}

// WaitSame takes snapshots until one is as s was, or ctx ends: the kernel frees some things a little later. It
// returns the last difference.
func (s Snapshot) WaitSame(ctx context.Context, scope Scope) ([]string, error) {
	for {
		now, err := TakeSnapshot(scope)
		if err != nil {
			return nil, err
		}
		diff := s.Diff(now)
		if len(diff) == 0 {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return diff, nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

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
	// The zero table filter shows those of all tables.
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

// pins lists what is pinned in a bpf file system below our paths.
func (s Snapshot) pins(scope Scope) error {
	for _, dir := range scope.Paths {
		for _, name := range []string{dir, filepath.Join(dir, "bpf")} {
			if !isBPFfs(name) {
				continue
			}
			err := filepath.WalkDir(name, func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					s["pin "+path] = true
				}
				return ignoreGone(err)
			})
			if err != nil {
				return fmt.Errorf("snapshot of pins: %w", err)
			}
		}
	}
	return nil
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
		ours[p.pid] = p.pid != os.Getpid() && (scope.OwnProcess && p.parent == os.Getpid() || contains(strings.Join(p.argv, " "), scope.Paths))
	}
	for grown := true; grown; { // descendants, whatever the order of their pids
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

func (s Snapshot) bpf(scope Scope) error {
	if len(scope.BPF) == 0 {
		return nil
	}
	programs := map[ebpf.ProgramID]bool{}
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // freed since
		}
		if info, err := p.Info(); err == nil && hasPrefix(info.Name, scope.BPF) {
			programs[id] = true
			s[fmt.Sprintf("eBPF program %s (id %d)", info.Name, id)] = true
		}
		p.Close()
	}
	for id, err := ebpf.MapGetNextID(0); err == nil; id, err = ebpf.MapGetNextID(id) {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		if info, err := m.Info(); err == nil && hasPrefix(info.Name, scope.BPF) {
			s[fmt.Sprintf("eBPF map %s (id %d)", info.Name, id)] = true
		}
		m.Close()
	}
	// EAGAIN: another process is just making a link (bpf_link_by_id in kernel/bpf/syscall.c).
	err := s.links(programs)
	for try := 0; errors.Is(err, unix.EAGAIN) && try < 100; try++ {
		time.Sleep(time.Millisecond)
		err = s.links(programs)
	}
	return err
}

func (s Snapshot) links(programs map[ebpf.ProgramID]bool) error {
	links := new(link.Iterator)
	defer links.Close()
	for links.Next() {
		if info, err := links.Link.Info(); err == nil && programs[info.Program] {
			s[fmt.Sprintf("eBPF link (id %d) of program %d", info.ID, info.Program)] = true
		}
	}
	return links.Err()
}

// ownBPF finds the eBPF objects among this process's open files, by what their fdinfo tells (proc(5)).
func (s Snapshot) ownBPF(scope Scope) error {
	if !scope.OwnProcess {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fdinfo")
	if err != nil {
		return fmt.Errorf("snapshot of own files: %w", err)
	}
	for _, e := range entries {
		info, err := os.ReadFile("/proc/self/fdinfo/" + e.Name())
		if err != nil {
			continue // closed since
		}
		for line := range strings.Lines(string(info)) {
			kind, id, ok := strings.Cut(line, ":")
			if ok && (kind == "map_id" || kind == "prog_id" || kind == "link_id") {
				s[fmt.Sprintf("open eBPF %s %s", kind, strings.TrimSpace(id))] = true
			}
		}
	}
	return nil
}

func hasPrefix(name string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

func contains(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// under tells whether path is one of dirs or below one.
func under(path string, dirs []string) bool {
	for _, d := range dirs {
		if d = filepath.Clean(d); path == d || strings.HasPrefix(path, d+"/") {
			return true
		}
	}
	return false
}

// ignoreGone lets a walk go on when something went away under it.
func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// isBPFfs tells whether path is in a bpf file system.
func isBPFfs(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.BPF_FS_MAGIC
}
