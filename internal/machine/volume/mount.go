// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mounted calls f while the file system of a volume is mounted.
func (p place) mounted(r Record, f func() error) error {
	was, err := p.mount(r)
	if err != nil {
		return err
	}
	err = f()
	if !was {
		err = errors.Join(err, p.unmount())
	}
	return err
}

// mount mounts the file system of a volume with a size, unless it is mounted.
func (p place) mount(r Record) (was bool, err error) {
	if r.SizeBytes == 0 {
		return true, nil
	}
	if was, err = mountinfo.Mounted(p.fs()); was || err != nil {
		return was, err
	}
	device, err := attach(p.disk())
	if err != nil {
		return false, fmt.Errorf("loop device for %s: %w", p.disk(), err)
	}
	defer device.Close() // the mount keeps the device; without one, the kernel detaches it
	err = unix.Mount(device.Name(), p.fs(), "ext4", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOATIME, "errors=remount-ro")
	if err != nil {
		return false, fmt.Errorf("mount %s (%s) at %s: %w", p.disk(), device.Name(), p.fs(), err)
	}
	return false, nil
}

// attach returns a loop device for a file. A device that already has the file is reused: two devices would mean two
// file systems on the same data. A container that is about to end can still hold one.
func attach(file string) (*os.File, error) {
	var want unix.Stat_t
	if err := unix.Stat(file, &want); err != nil {
		return nil, err
	}
	devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		device := strings.Split(d, "/")[3]
		f, err := os.OpenFile(filepath.Join("/dev", device), os.O_RDWR, 0)
		if err != nil {
			continue // detached meanwhile
		}
		if info, err := unix.IoctlLoopGetStatus64(int(f.Fd())); err == nil && info.Inode == want.Ino &&
			info.Device == kernelDevice(want.Dev) {
			return f, nil
		}
		f.Close()
	}
	// Without direct I/O the page cache would hold everything twice. The kernel ignores the request where the file
	// system does not support it.
	return mount.SetupLoop(file, mount.LoopParams{Autoclear: true, Direct: true})
}

// kernelDevice converts a device number of stat(2) to that of LOOP_GET_STATUS64, which huge_encode_dev makes
// (include/linux/kdev_t.h).
func kernelDevice(dev uint64) uint64 {
	major, minor := uint64(unix.Major(dev)), uint64(unix.Minor(dev))
	return minor&0xff | major<<8 | minor&^0xff<<12
}

// unmount unmounts the file system of a volume, if it is mounted, and so writes it to disk.
func (p place) unmount() error {
	err := unix.Unmount(p.fs(), unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // it is not mounted
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", p.fs(), err)
	}
	return nil
}

// destroy removes the folder of a volume with everything in it.
func (p place) destroy() error {
	if err := p.unmount(); err != nil {
		return err
	}
	return os.RemoveAll(string(p))
}
