// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// keyring has the keys that sign Debian's archives.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// debianSuite is the Debian of the VMs.
const debianSuite = "trixie"

// rootPackages are what the checks use.
var rootPackages = []string{"base-files", "base-passwd", "bash", "dash", "coreutils", "libc-bin", "grep", "sed", "gawk",
	"findutils", "diffutils", "hostname", "iproute2", "procps", "ethtool", "kmod", "util-linux", "systemd", "containerd",
	"runc", "curl", "jq"}

// rootDisk returns the disk with the root file system of VMs, which it makes if it is not in the cache. Its
// packages are unpacked only, as programs of another architecture cannot run here to configure them.
func rootDisk(ctx context.Context, cache, mirror, arch string) (string, error) {
	args := []string{"--quiet", "--mode=root", "--variant=extract", "--architectures=" + arch,
		"--include=" + strings.Join(rootPackages, ","), "--keyring=" + keyring, "--format=directory",
		"--aptopt=Acquire::Languages \"none\"", "--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*"}
	sum := sha256.Sum256([]byte(fmt.Sprint(args, mirror)))
	dir := filepath.Join(cache, fmt.Sprintf("root-%s-%s", arch, hex.EncodeToString(sum[:])[:12]))
	disk := filepath.Join(dir, "root.img")
	return disk, once(dir, func(tmp string) error {
		say("a root file system with Debian %s for %s: about 1 minute", debianSuite, arch)
		root := filepath.Join(tmp, "root")
		args = append(args, debianSuite, root, fmt.Sprintf("deb %s/debian %s main", mirror, debianSuite),
			fmt.Sprintf("deb %s/debian-security %s-security main", mirror, debianSuite))
		if _, err := output(exec.CommandContext(ctx, "mmdebstrap", args...)); err != nil {
			return err
		}
		for _, d := range []string{"payload", "usr/lib/modules", "dev", "proc", "sys", "run", "tmp", "root"} {
			if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
				return err
			}
		}
		if err := addUsers(root); err != nil {
			return err
		}
		return errors.Join(makeDisk(ctx, filepath.Join(tmp, "root.img"), root, 2<<30), os.RemoveAll(root))
	})
}

// addUsers creates the users as the script of base-passwd would, because the programs of the packages expect them.
func addUsers(root string) error {
	for _, file := range []string{"passwd", "group"} {
		data, err := os.ReadFile(filepath.Join(root, "usr/share/base-passwd", file+".master"))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, "etc", file), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// makeDisk writes an image of an ext4 file system with the content of a folder and some free bytes.
func makeDisk(ctx context.Context, image, dir string, free int64) error {
	size := free
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += (info.Size()+4095)&^4095 + 512
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = output(exec.CommandContext(ctx, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", dir, image,
		fmt.Sprintf("%dk", size>>10+size>>14)))
	return err
}

// once fills a folder of the cache by a function, unless it is there already. Other processes wait meanwhile. The
// function gets a temporary folder, which is renamed once it is complete.
func once(dir string, fill func(tmp string) error) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	tmp := dir + ".part"
	if err := errors.Join(os.RemoveAll(tmp), os.Mkdir(tmp, 0o755)); err != nil {
		return err
	}
	if err := fill(tmp); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	return os.Rename(tmp, dir)
}
