// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// hierarchies returns the mount points of the cgroup hierarchies: a single one on v2, one for each controller on v1,
// and both on a hybrid system.
func hierarchies() ([]string, error) {
	if isCgroup2(cgroupRoot) {
		return []string{cgroupRoot}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	var all []string
	for _, e := range entries {
		dir := filepath.Join(cgroupRoot, e.Name())
		// cpu and cpuacct may be links to the hierarchy cpu,cpuacct: the folder itself is enough.
		if e.IsDir() {
			if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
				all = append(all, dir)
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no cgroup hierarchy is mounted below %s", cgroupRoot)
	}
	return all, nil
}

func isCgroup2(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
}

// makeCgroup creates a cgroup and its parents in every hierarchy, ready for processes and children.
func makeCgroup(path string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := root
		for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
			if isCgroup2(dir) {
				enableControllers(dir)
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make cgroup: %w", err)
			}
			// A cpuset of v1 accepts no process before it has CPUs and memory nodes.
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
				if isCgroup2(dir) {
					break
				}
				if v, err := os.ReadFile(filepath.Join(parent, f)); err == nil {
					if err := os.WriteFile(filepath.Join(dir, f), v, 0o644); err != nil {
						return fmt.Errorf("cgroup %s: %w", dir, err)
					}
				}
			}
		}
	}
	return nil
}

// enableControllers delegates the controllers of a v2 cgroup to its children, one by one: one that fails must not
// prevent the others, and kubelet names those that it misses.
func enableControllers(dir string) {
	list, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, c := range strings.Fields(string(list)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644)
	}
}

// joinCgroup moves the calling process into a cgroup in every hierarchy.
func joinCgroup(path string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		if err := os.WriteFile(filepath.Join(root, path, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// removeCgroup removes a cgroup with its children in every hierarchy. Processes that are still exiting are waited for
// until the deadline.
func removeCgroup(path string, patience time.Duration) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(patience)
	for {
		var left error
		for _, root := range roots {
			if err := removeTree(filepath.Join(root, path)); err != nil {
				left = err
			}
		}
		if left == nil || time.Now().After(deadline) {
			return left
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// removeTree removes a folder of a cgroup file system with its subfolders. The files in them need no removal.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, dir := range dirs {
		// With version 1, processes that were killed while they were frozen end once they are thawed. Other hierarchies
		// have no such file.
		_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if e := os.Remove(dirs[i]); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = e
		}
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

// cgroupMounts describes how the cgroup hierarchies of the host are mounted.
type cgroupMounts struct {
	mounts []cgroupMount
	links  map[string]string // names of v1 controllers that share a hierarchy, such as cpu → cpu,cpuacct
}

type cgroupMount struct{ target, kind, data string }

// findCgroupMounts reads how the cgroup hierarchies are mounted.
func findCgroupMounts() (cgroupMounts, error) {
	m := cgroupMounts{links: map[string]string{}}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(b)) {
		// proc(5): fields, a dash, then type, source and the options of the file system.
		left, right, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if !ok || len(f) < 5 || len(g) < 3 || !strings.HasPrefix(f[4], cgroupRoot) {
			continue
		}
		switch g[0] {
		case "cgroup2":
			m.mounts = append(m.mounts, cgroupMount{target: f[4], kind: g[0]})
		case "cgroup":
			var data []string
			for _, o := range strings.Split(g[2], ",") {
				if o != "rw" && o != "ro" && !strings.HasPrefix(o, "release_agent=") {
					data = append(data, o)
				}
			}
			if slices.ContainsFunc(data, func(o string) bool { return strings.HasPrefix(o, "name=") }) {
				data = append([]string{"none"}, data...)
			}
			m.mounts = append(m.mounts, cgroupMount{target: f[4], kind: g[0], data: strings.Join(data, ",")})
		}
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return m, err
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(cgroupRoot, e.Name())); err == nil {
			m.links[e.Name()] = to
		}
	}
	return m, nil
}

// mount mounts the hierarchies in the same way, as the cgroup namespace of the process shows them: below its own root.
// So a kubelet sees only the cgroups of its node.
func (m cgroupMounts) mount() error {
	if len(m.mounts) == 0 {
		return fmt.Errorf("no cgroup hierarchy is mounted below %s", cgroupRoot)
	}
	if m.mounts[0].target != cgroupRoot {
		if err := unix.Mount("tmpfs", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount tmpfs on %s: %w", cgroupRoot, err)
		}
	}
	for _, h := range m.mounts {
		if err := os.MkdirAll(h.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("cgroup", h.target, h.kind, 0, h.data); err != nil {
			return fmt.Errorf("mount %s (%s) on %s: %w", h.kind, h.data, h.target, err)
		}
	}
	for name, to := range m.links {
		if err := os.Symlink(to, filepath.Join(cgroupRoot, name)); err != nil {
			return err
		}
	}
	return nil
}
