// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Number of inotify instances of a cluster's programs, as counted on a running one: of the control plane, and of each
// node. Pods that watch files need more.
const (
	inotifyControl = 9
	inotifyNode    = 8
)

// checkInotify fails if the kernel would refuse inotify instances to some programs of a cluster. All processes of root
// together may have 128 by default. Without enough, kubelet and containerd fail in confusing ways.
func checkInotify(nodes int) error {
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		return err
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return fmt.Errorf("fs.inotify.max_user_instances: %w", err)
	}
	// Processes that exit meanwhile are skipped.
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
		return fmt.Errorf("too few inotify instances: %d of %d are in use and a cluster of %d needs %d: take another "+
			"cluster down, "+
			"or raise the limit (sysctl fs.inotify.max_user_instances)", used, limit, nodes, need)
	}
	return nil
}
