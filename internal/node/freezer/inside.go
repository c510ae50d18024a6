// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	procs "wangell.loutres.me/internal/base/process"
)

// Inside are the processes of a cgroup whose children are the containers of a pod.
type Inside struct {
	// Mains has the main process of each container.
	Mains []int
	// Guests are the processes that others have started in a container, beside its own: commands of kubectl exec and of
	// exec probes, with their children.
	Guests []int
}

// process has the properties that decide where a process comes from.
type process struct {
	parent int
	start  uint64 // in clock ticks since boot
}

// Inside looks at the processes of a cgroup, which must be visible to the caller. The main process of a container is
// the first one whose parent is outside of the cgroup.
func (f *Freezer) Inside(cgroup string) (in Inside, err error) {
	dirs, err := f.tree(cgroup)
	if err != nil {
		return in, err
	}
	containers := make([]map[int]process, len(dirs))
	all := map[int]process{}
	for i, dir := range dirs {
		pids, err := processesOf(dir)
		if err != nil {
			return in, err
		}
		containers[i] = map[int]process{}
		for _, pid := range pids {
			if p, ok := readProcess(pid); ok {
				containers[i][pid], all[pid] = p, p
			}
		}
	}
	in.split(containers, all)
	return in, nil
}

// split separates the main processes of containers from guests. all has the processes of all containers.
func (in *Inside) split(containers []map[int]process, all map[int]process) {
	main := map[int]bool{}
	for _, c := range containers {
		first := 0
		for pid, p := range c {
			if _, inside := all[p.parent]; inside {
				continue
			}
			if q, ok := c[first]; !ok || p.start < q.start || p.start == q.start && pid < first {
				first = pid
			}
		}
		if first != 0 {
			main[first] = true
			in.Mains = append(in.Mains, first)
		}
	}
	for pid := range all {
		root := pid
		for range all { // a chain of parents is not longer than that
			parent := all[root].parent
			if _, inside := all[parent]; !inside {
				break
			}
			root = parent
		}
		if !main[root] {
			in.Guests = append(in.Guests, pid)
		}
	}
	slices.Sort(in.Mains)
	slices.Sort(in.Guests)
}

// tree returns the folders of a cgroup and of those below it, in the hierarchy that freezes.
func (f *Freezer) tree(cgroup string) (dirs []string, err error) {
	c, err := f.control(cgroup)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(filepath.Dir(c.file), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has just been removed
		}
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	return dirs, err
}

// processesOf reads the processes in a cgroup; none if it has just been removed.
func processesOf(dir string) (pids []int, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("%s has the process %q: this program must see the processes of the machine", dir, field)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// readProcess looks at a process. ok is false for a process that has ended.
func readProcess(pid int) (p process, ok bool) {
	fields, err := procs.Stat(pid)
	if err != nil || len(fields) <= procs.StatStartTime || fields[procs.StatState] == "Z" {
		return p, false
	}
	p.parent, err = strconv.Atoi(fields[procs.StatParent])
	if err != nil {
		return p, false
	}
	p.start, err = strconv.ParseUint(fields[procs.StatStartTime], 10, 64)
	return p, err == nil
}

// signalled reports whether a signal waits for a process.
func signalled(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		name, mask, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		if bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err == nil && bits != 0 {
			return true
		}
	}
	return false
}

// Signalled reports whether a signal waits for the main process of a container. In a frozen cgroup signals wait, except
// for SIGKILL in version 2.
func (in Inside) Signalled() bool { return slices.ContainsFunc(in.Mains, signalled) }

// Holds reports whether a process is in a cgroup or below it.
func (f *Freezer) Holds(cgroup string, pid int) (bool, error) {
	pids, err := f.processes(cgroup)
	return slices.Contains(pids, pid), err
}

// processes reads the processes in a cgroup or below it.
func (f *Freezer) processes(cgroup string) (all []int, err error) {
	dirs, err := f.tree(cgroup)
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		pids, err := processesOf(dir)
		if err != nil {
			return nil, err
		}
		all = append(all, pids...)
	}
	return all, nil
}
