// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The inotify instances that a cluster's programs hold, as counted on a running one: of the control plane's, and of
// each node's. Pods that watch files come on top.
const (
	inotifyControl = 9
	inotifyNode    = 8
)

// checkInotify fails if the kernel would refuse some programs of a cluster their inotify instances, of which root's
// processes together may have few: 128 unless it is set otherwise. kubelet and containerd then fail in strange ways.
func checkInotify(nodes int) error {
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		return err
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return fmt.Errorf("fs.inotify.max_user_instances: %w", err)
	}
	// Files of processes that end meanwhile cannot be read, and do not count.
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return err
	}
	used := 0
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil && to == "anon_inode:inotify" {
			used++
		}
	}
	if need := inotifyControl + nodes*inotifyNode; used+need > limit {
		return fmt.Errorf("too few inotify instances: %d of %d are in use and a cluster of %d needs %d: take another cluster down, "+
			"or raise the limit (sysctl fs.inotify.max_user_instances)", used, limit, nodes, need)
	}
	return nil
}
