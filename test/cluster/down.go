// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/clusterfile"
	"wangell.loutres.me/test/testutil/netlab"
)

// namespaces returns the names of the existing network namespaces of a cluster.
func namespaces(cluster string) ([]string, error) {
	entries, err := os.ReadDir(netlab.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ours := regexp.MustCompile("^" + regexp.QuoteMeta(cluster) + `-(lan|client|control|node-[0-9]+)$`)
	var names []string
	for _, e := range entries {
		if ours.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// processesIn returns the processes in a network namespace.
func processesIn(name string) ([]process, error) {
	var ns unix.Stat_t
	if err := unix.Stat(filepath.Join(netlab.Dir, name), &ns); err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", name, err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &st) != nil || st.Ino != ns.Ino || st.Dev != ns.Dev {
			continue
		}
		if proc, err := processOf(pid); err == nil {
			found = append(found, proc)
		}
	}
	return found, nil
}

// killNamespace kills the processes of a network namespace until there is none. With the first process of a machine all
// others end, including pods in their own namespaces.
func killNamespace(name string) error {
	for {
		procs, err := processesIn(name)
		if err != nil || len(procs) == 0 {
			return err
		}
		for _, p := range procs {
			if err := p.kill(); err != nil {
				return fmt.Errorf("network namespace %s: %w", name, err)
			}
		}
	}
}

// leftOvers returns the parts of a cluster outside of its folder: network namespaces and cgroups.
func leftOvers(cluster string) ([]string, error) {
	found, err := namespaces(cluster)
	if err != nil {
		return nil, err
	}
	roots, err := hierarchies()
	if err != nil {
		return nil, err
	}
	for _, root := range roots {
		if dir := filepath.Join(root, plan{Name: cluster}.cgroup("")); exists(dir) {
			found = append(found, dir)
		}
	}
	return found, nil
}

// down removes every trace of a cluster. It finds everything by the names of namespaces and cgroups instead of notes,
// and so also cleans up after an `up` that was killed. With keepLogs the folder stays.
func down(cluster, dir string, keepLogs bool) error {
	names, err := namespaces(cluster)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := killNamespace(name); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := deleteNetns(name); err != nil {
			return err
		}
	}
	if err := removeCgroup(plan{Name: cluster}.cgroup(""), 20*time.Second); err != nil {
		return err
	}
	if keepLogs {
		return os.Remove(clusterfile.Path(dir))
	}
	// Only a folder of `up` is removed.
	if !exists(filepath.Join(dir, "pki")) && !exists(clusterfile.Path(dir)) {
		return nil
	}
	return os.RemoveAll(dir)
}

// killNode cuts the power of a node: its link and all its processes, pods included, end at once.
func killNode(p plan, s *state, name string) error {
	info, err := s.node(name)
	if err != nil {
		return err
	}
	if !info.Up {
		return fmt.Errorf("%s is down already", name)
	}
	if err := setLANLink(p, name, false); err != nil {
		return err
	}
	if err := killNamespace(p.netns(name)); err != nil {
		return err
	}
	if err := removeCgroup(p.cgroup(name), 20*time.Second); err != nil {
		return err
	}
	info.Up, info.ContainerdSocket = false, ""
	info.HolderPid, info.KubeletPid, info.ContainerdPid, info.ProxyPid = 0, 0, 0, 0
	return s.save()
}
