// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
)

// diskSize is the size of file systems in files, in bytes. A sparse file has that many at most.
const diskSize = 6 << 30

// disk is a folder on a file system of one of the kinds of disks.
type disk struct {
	// dir is the folder for an instance. It is short, because there are sockets below it.
	dir string

	base    string
	mounted bool
}

// newDisk makes a disk. The caller closes it.
func newDisk(ctx context.Context, kind, device string) (_ *disk, err error) {
	d := &disk{}
	if d.base, err = os.MkdirTemp("", "wls-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("disk %s: %w", kind, err), d.close())
		}
	}()
	d.dir = filepath.Join(d.base, "d")
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(d.base, "file")
	switch kind {
	case diskMachine:
		return d, nil
	case diskDevice:
		return d, d.format(ctx, "ext4", device)
	case diskSparse:
		err = sized(file, false)
	default:
		err = sized(file, true)
	}
	if err != nil {
		return nil, err
	}
	loop, err := mount.SetupLoop(file, mount.LoopParams{Autoclear: true, Direct: true})
	if err != nil {
		return nil, err
	}
	defer loop.Close() // the mount keeps it
	if kind == diskBtrfs {
		return d, d.format(ctx, "btrfs", loop.Name())
	}
	return d, d.format(ctx, "ext4", loop.Name())
}

// sized makes a file of diskSize, with or without its blocks.
func sized(file string, reserve bool) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if reserve {
		return unix.Fallocate(int(f.Fd()), 0, 0, diskSize)
	}
	return f.Truncate(diskSize)
}

// format makes a file system on a device and mounts it.
func (d *disk) format(ctx context.Context, kind, device string) error {
	argv := []string{"mkfs.ext4", "-q", "-F", "-E", "nodiscard", device}
	if kind == "btrfs" {
		argv = []string{"mkfs.btrfs", "-q", "-f", "-K", device}
	}
	if _, err := output(exec.CommandContext(ctx, argv[0], argv[1:]...)); err != nil {
		return err
	}
	if err := unix.Mount(device, d.dir, kind, 0, ""); err != nil {
		return fmt.Errorf("mount %s (%s) at %s: %w", device, kind, d.dir, err)
	}
	d.mounted = true
	return os.Chmod(d.dir, 0o755)
}

// close removes everything that newDisk made. What a device has stays on it.
func (d *disk) close() error {
	if d.mounted {
		if err := unix.Unmount(d.dir, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w: unmount it and remove %s", d.dir, err, d.base)
		}
		d.mounted = false
	}
	return os.RemoveAll(d.base)
}
