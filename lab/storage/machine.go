// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/host"
)

// describeDisk says what the folder for temporary files lies on.
func describeDisk() map[string]any {
	about := map[string]any{}
	m, err := host.MountOf(os.TempDir())
	if err != nil {
		return about
	}
	about["disk: file system"] = fmt.Sprintf("%s on %s (%s)", m.FSType, filepath.Base(m.Source), m.VFSOptions)
	var st unix.Statfs_t
	if unix.Statfs(os.TempDir(), &st) == nil {
		about["disk: free (GiB)"] = int64(st.Bavail) * st.Bsize >> 30
	}
	device, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", m.Major, m.Minor))
	if err != nil {
		return about
	}
	if _, err := os.Stat(filepath.Join(device, "queue")); err != nil {
		device = filepath.Dir(device) // a partition: the queue is the disk's
	}
	for key, file := range map[string]string{
		"disk: rotational":         "queue/rotational",
		"disk: scheduler":          "queue/scheduler",
		"disk: write cache":        "queue/write_cache",
		"disk: logical block size": "queue/logical_block_size",
	} {
		if data, err := os.ReadFile(filepath.Join(device, file)); err == nil {
			about[key] = strings.TrimSpace(string(data))
		}
	}
	return about
}
