// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/host"
	"wangell.loutres.me/internal/base/text"
)

// containerdRoot is the image folder of a distribution's containerd.
const containerdRoot = "/var/lib/containerd"

// stores checks the file systems of the folders with images, layers and volumes: the state folder, and that of the
// machine's containerd if there is one.
func stores(stateDir, containerd, snapshotter string) []Check {
	all := []Check{store("state folder", stateDir, snapshotter)}
	if _, err := os.Stat(containerd); err == nil {
		all = append(all, store("containerd's folder", containerdRoot, snapshotter))
	}
	return all
}

// ground is what a folder lies on.
type ground struct {
	dir     string
	fsType  string
	source  string // the device, or the server
	backing string // the file behind a loop device; empty if it is none
	free    int64  // bytes
	inodes  uint64 // free ones; counted if the file system has a fixed number
	counted bool
	// typeless is set if the file system does not report the types of a folder's entries.
	typeless bool
}

// Less free space than this, or fewer free inodes, is soon used up by a few images.
const (
	leastFree   = 2 << 30
	leastInodes = 50_000
)

// store checks a folder for a snapshotter, or the folder in which it will be made.
func store(name, dir, snapshotter string) Check {
	c := Check{Name: name, Group: Storage, For: "images, layers and volumes"}
	g, err := look(dir)
	if err != nil {
		return c.skipped(err.Error())
	}
	found := fmt.Sprintf("%s: %s on %s, %s free", dir, g.fsType, g.source, text.Bytes(g.free))
	if problem, advice := g.judge(snapshotter); problem != "" {
		c.Do = advice
		return c.warn(found + ": " + problem)
	}
	return c.ok(found)
}

// judge returns the first problem of a file system for a snapshotter, and what to do about it.
func (g ground) judge(snapshotter string) (problem, advice string) {
	const elsewhere = "put the folder on a disk of the machine: wangell up --state-dir, or mount one there"
	network := map[string]bool{"nfs": true, "nfs4": true, "cifs": true, "smb3": true, "ceph": true, "9p": true,
		"virtiofs": true, "afs": true, "glusterfs": true}
	mountsOverlay := snapshotter == "overlayfs" || snapshotter == "erofs"
	switch {
	case (snapshotter == "btrfs" || snapshotter == "zfs") && g.fsType != snapshotter:
		return fmt.Sprintf("the snapshotter %s needs %s", snapshotter, snapshotter),
			fmt.Sprintf("mount a %s there, or choose another: wangell up --snapshotter", snapshotter)
	case mountsOverlay && (g.fsType == "overlay" || g.fsType == "aufs"):
		return "overlayfs cannot have its folders on another overlayfs", elsewhere +
			"; wangell up --snapshotter native does without, and copies the image for each container"
	case network[g.fsType] || strings.HasPrefix(g.fsType, "fuse"):
		return "layers on a network file system, or one in a process, are slow, and overlayfs may refuse them", elsewhere
	case g.fsType == "tmpfs" || g.fsType == "ramfs":
		return "images and volumes are in memory, and lost with a reboot", elsewhere
	case mountsOverlay && g.typeless:
		return "it does not report the types of files in folders (d_type), which overlayfs needs",
			"make it anew, XFS with mkfs.xfs -n ftype=1"
	case g.backing != "":
		return fmt.Sprintf("a loop device on the file %s: each write passes two file systems", g.backing),
			"give the folder a partition or a logical volume; if it has to be a file, reserve its space (fallocate)"
	case g.free < leastFree:
		return "that is little", "free some space: wangell image rm, or apt-get clean"
	case g.counted && g.inodes < leastInodes:
		return fmt.Sprintf("only %d files more can be made", g.inodes), "make the file system anew with more inodes"
	}
	return "", ""
}

// look finds the file system of a folder, or of its nearest parent that exists.
func look(dir string) (g ground, err error) {
	at, err := filepath.Abs(dir)
	if err != nil {
		return g, err
	}
	for {
		real, err := filepath.EvalSymlinks(at)
		if err == nil {
			at = real
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || at == "/" {
			return g, err
		}
		at = filepath.Dir(at)
	}
	m, err := host.MountOf(at)
	if err != nil {
		return g, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return g, fmt.Errorf("statfs %s: %w", at, err)
	}
	g = ground{dir: at, fsType: m.FSType, source: m.Source, free: int64(st.Bavail) * st.Bsize,
		inodes: st.Ffree, counted: st.Files > 0}
	g.backing = backingFile(deviceOf(m.Major, m.Minor, m.Source))
	g.typeless, err = typeless(at)
	return g, err
}

// deviceOf returns the folder in /sys of the block device of a file system. Those that may have several devices, such
// as btrfs, have a number of their own: then it is the device that was mounted.
func deviceOf(major, minor int, source string) string {
	var st unix.Stat_t
	if major == 0 && unix.Stat(source, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
		major, minor = int(unix.Major(st.Rdev)), int(unix.Minor(st.Rdev))
	}
	return fmt.Sprintf("/sys/dev/block/%d:%d", major, minor)
}

// backingFile returns the file behind a block device that is a loop device, or lies on one; empty if there is none.
// Device mapper and RAID list the devices below them as slaves.
func backingFile(device string) string {
	if text, err := os.ReadFile(filepath.Join(device, "loop", "backing_file")); err == nil {
		return strings.TrimSpace(string(text))
	}
	if _, err := os.Stat(filepath.Join(device, "partition")); err == nil {
		if real, err := filepath.EvalSymlinks(device); err == nil {
			return backingFile(filepath.Dir(real)) // the whole disk
		}
	}
	below, err := filepath.Glob(filepath.Join(device, "slaves", "*"))
	if err != nil {
		return ""
	}
	for _, d := range below {
		if file := backingFile(d); file != "" {
			return file
		}
	}
	return ""
}

// typeless reports whether the entries of a folder have no types. Every folder has "." and "..".
func typeless(dir string) (bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer f.Close()
	buffer := make([]byte, 4096)
	n, err := unix.Getdents(int(f.Fd()), buffer)
	if err != nil {
		return false, fmt.Errorf("getdents %s: %w", dir, err)
	}
	return unknownTypes(buffer[:n]), nil
}

// unknownTypes reports whether an entry of getdents64(2) has the type DT_UNKNOWN: an inode and an offset of 8 bytes
// each, the entry's length in 2, its type in 1, and its name.
func unknownTypes(entries []byte) bool {
	const lengthAt, typeAt = 16, 18
	for len(entries) > typeAt {
		if entries[typeAt] == unix.DT_UNKNOWN {
			return true
		}
		length := int(binary.NativeEndian.Uint16(entries[lengthAt:]))
		if length <= typeAt || length > len(entries) {
			return false
		}
		entries = entries[length:]
	}
	return false
}
