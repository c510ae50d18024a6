// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/need"
)

func TestBadGroundForImagesIsNamed(t *testing.T) {
	good := ground{fsType: "ext4", source: "/dev/vda1", free: 100 << 30, inodes: 1 << 20, counted: true}
	for name, c := range map[string]struct {
		change func(*ground)
		want   string
	}{
		"good":      {func(*ground) {}, ""},
		"overlay":   {func(g *ground) { g.fsType = "overlay" }, "on another overlayfs"},
		"network":   {func(g *ground) { g.fsType = "nfs4" }, "network file system"},
		"process":   {func(g *ground) { g.fsType = "fuse.sshfs" }, "network file system, or one in a process"},
		"memory":    {func(g *ground) { g.fsType = "tmpfs" }, "lost with a reboot"},
		"loop":      {func(g *ground) { g.backing = "/disk.img" }, "a loop device on the file /disk.img"},
		"typeless":  {func(g *ground) { g.typeless = true }, "d_type"},
		"full":      {func(g *ground) { g.free = 1 << 30 }, "that is little"},
		"no inodes": {func(g *ground) { g.inodes = 10 }, "only 10 files more"},
		"btrfs":     {func(g *ground) { g.fsType, g.inodes, g.counted = "btrfs", 0, false }, ""},
	} {
		g := good
		c.change(&g)
		problem, advice := g.judge("overlayfs")
		if (c.want == "") != (problem == "") || !strings.Contains(problem, c.want) || (problem == "") != (advice == "") {
			t.Errorf("%s: %q, %q", name, problem, advice)
		}
	}
}

func TestGroundOfAFolderIsFoundBeforeItIsMade(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	g, err := look(filepath.Join(link, "not", "yet"))
	real, evalErr := filepath.EvalSymlinks(dir)
	if err != nil || evalErr != nil || g.dir != real || g.fsType == "" || g.free == 0 || g.typeless {
		t.Errorf("%+v, %v", g, err)
	}
	c := store("state folder", filepath.Join(dir, "not", "yet"), "overlayfs")
	if c.State != OK && c.State != Warn || c.Found == "" {
		t.Errorf("%+v", c)
	}
}

func TestFolderInMemoryIsFound(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	c := store("state folder", filepath.Join(dir, "state"), "overlayfs")
	if c.State != Warn || !strings.Contains(c.Found, "in memory") {
		t.Errorf("%+v", c)
	}
}

func TestFileBehindADeviceIsFoundThroughOthers(t *testing.T) {
	sys := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(sys, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("loop0/loop/backing_file", "/disk.img\n")
	write("loop0/loop0p1/partition", "1\n")
	write("sda/size", "1\n")
	write("dm-0/slaves/sda/size", "1\n")
	slave := filepath.Join(sys, "dm-0", "slaves", "loop0p1")
	if err := os.Symlink(filepath.Join(sys, "loop0", "loop0p1"), slave); err != nil {
		t.Fatal(err)
	}
	for device, want := range map[string]string{
		"loop0": "/disk.img", "loop0/loop0p1": "/disk.img", "dm-0": "/disk.img", "sda": "", "none": "",
	} {
		if got := backingFile(filepath.Join(sys, device)); got != want {
			t.Errorf("%s: %q, want %q", device, got, want)
		}
	}
}

// Btrfs has a device number that no device has.
func TestDeviceOfAFileSystemWithANumberOfItsOwnIsFound(t *testing.T) {
	need.Root(t)
	device := filepath.Join(t.TempDir(), "loop")
	if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 200))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		major, minor int
		source, want string
	}{
		{0, 41, device, "/sys/dev/block/7:200"}, {8, 1, device, "/sys/dev/block/8:1"},
		{0, 41, "tmpfs", "/sys/dev/block/0:41"},
	} {
		if got := deviceOf(c.major, c.minor, c.source); got != c.want {
			t.Errorf("%d:%d on %s: %s, want %s", c.major, c.minor, c.source, got, c.want)
		}
	}
}

func TestEntriesWithoutTypesAreSeen(t *testing.T) {
	entry := func(kind byte) []byte {
		b := make([]byte, 24)
		binary.NativeEndian.PutUint16(b[16:], 24)
		b[18] = kind
		return b
	}
	if unknownTypes(append(entry(unix.DT_DIR), entry(unix.DT_REG)...)) {
		t.Error("types are unknown, although they are given")
	}
	if !unknownTypes(append(entry(unix.DT_DIR), entry(unix.DT_UNKNOWN)...)) {
		t.Error("an entry without a type is not seen")
	}
	if unknownTypes([]byte{1, 2, 3}) || unknownTypes(make([]byte, 19)[:0]) {
		t.Error("half an entry")
	}
}
