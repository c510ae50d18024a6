// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"

	"github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"
)

// Usage is how much of a volume is used.
type Usage struct {
	UsedBytes int64 `json:"usedBytes"`
	// AvailableBytes is what can still be written: on a volume without a size, the free space of the disk.
	AvailableBytes int64 `json:"availableBytes"`
	// Files is the number of files and folders.
	Files int64 `json:"files"`
}

// Usage measures a volume. For a folder without a limit, it reads every directory entry.
func (s *Store) Usage(ctx context.Context, id ID) (u Usage, err error) {
	v := s.at(id)
	lock, r, err := v.lockRecord(ctx)
	if err != nil {
		return u, fmt.Errorf("volume %s: %w", id, err)
	}
	defer lock.Close()
	err = v.mounted(r, func() error {
		files, err := fs.DiskUsage(ctx, v.data())
		if err != nil {
			return err
		}
		var st unix.Statfs_t
		if err := unix.Statfs(v.data(), &st); err != nil {
			return err
		}
		u = Usage{files.Size, int64(st.Bavail) * st.Bsize, files.Inodes}
		return nil
	})
	if err != nil {
		return u, fmt.Errorf("usage of volume %s: %w", id, err)
	}
	return u, nil
}
