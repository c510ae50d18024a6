// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/text"
)

// make makes the volume of a record as it is wanted, unless it exists.
func (s *Store) make(ctx context.Context, r Record, w Want) error {
	return s.put(r, func(v place, r Record) error {
		if err := v.build(ctx, r.SizeBytes); err != nil {
			return err
		}
		return v.mounted(r, func() error {
			if w.Fill == nil {
				return MakeData(v.data(), w.UID, w.GID)
			}
			if err := w.Fill(v.data()); err != nil {
				return err
			}
			return syncFiles(v.fs()) // before it has its name
		})
	})
}

// put moves a volume into place once fill has made its content, unless it exists by then.
func (s *Store) put(r Record, fill func(place, Record) error) (err error) {
	r.Serial, r.Created = newSerial(), time.Now().UTC().Truncate(time.Second)
	v := place(filepath.Join(s.dir, newDir, r.Serial))
	defer func() { err = errors.Join(err, v.destroy()) }() // nothing of it is left there after the rename
	lock, err := v.begin()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := fill(v, r); err != nil {
		return err
	}
	if err := v.write(r); err != nil {
		return err
	}
	to := s.at(r.ID())
	if err := os.MkdirAll(filepath.Dir(string(to)), 0o700); err != nil {
		return err
	}
	err = os.Rename(string(v), string(to))
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil // another process was quicker
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(string(to)))
}

// begin makes the folder of a volume that is being made, and locks it against Sweep.
func (p place) begin() (*os.File, error) {
	if err := os.MkdirAll(string(p), 0o700); err != nil {
		return nil, err
	}
	lock, err := p.tryLock()
	if err == nil && lock == nil {
		err = fmt.Errorf("%s was removed just now", p)
	}
	return lock, err
}

// syncDir writes the entries of a folder to disk.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// syncFiles writes all files of the file system of a folder to disk.
func syncFiles(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

func newSerial() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// build makes the folder of a volume and, with a size, its file system.
func (p place) build(ctx context.Context, size int64) error {
	if err := os.MkdirAll(p.fs(), 0o700); err != nil {
		return err
	}
	if size == 0 {
		return nil
	}
	if err := reserve(p.disk(), 0, size); err != nil {
		return err
	}
	// No blocks reserved for root: containers often run as root. Discarding would give the allocated space back.
	return run(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard", p.disk())
}

// MakeData makes the folder of a volume that pods see, empty and owned by a user. Its parent must exist.
func MakeData(dir string, uid, gid int) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return errors.Join(os.Chown(dir, uid, gid), os.Chmod(dir, 0o755)) // Chmod, because of the umask
}

// reserve makes a file of a size, or grows one from size from, and allocates its space, so that a full disk is
// reported here and not as an I/O error of a file system in use.
func reserve(file string, from, size int64) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), 0, from, size-from)
	if err == nil {
		return f.Sync()
	}
	_ = f.Truncate(from)
	dir := filepath.Dir(file)
	switch {
	case errors.Is(err, unix.ENOSPC):
		var st unix.Statfs_t
		free := "not enough"
		if unix.Statfs(dir, &st) == nil {
			free = text.Bytes(int64(st.Bavail) * st.Bsize)
		}
		return fmt.Errorf("reserve %s: the disk of %s has %s free: lower size, free space, or move the state folder "+
			"(--state-dir)", text.Bytes(size-from), dir, free)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("the file system of %s cannot reserve space: leave size out, or put the state folder "+
			"(--state-dir) on ext4, XFS or Btrfs", dir)
	}
	return fmt.Errorf("reserve %s for %s: %w", text.Bytes(size-from), file, err)
}

// grow enlarges the file system of a volume that is not mounted.
func (p place) grow(ctx context.Context, r *Record, size int64) error {
	if err := reserve(p.disk(), r.SizeBytes, size); err != nil {
		return err
	}
	if err := check(ctx, p.disk()); err != nil {
		return err
	}
	if err := run(ctx, "resize2fs", p.disk()); err != nil {
		return err
	}
	r.SizeBytes = size
	return p.write(*r)
}

// check repairs what a crash left in a file system, as resize2fs requires. Exit codes 1 and 2 of e2fsck mean that it
// has.
func check(ctx context.Context, disk string) error {
	err := run(ctx, "e2fsck", "-f", "-p", disk)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() <= 2 {
		return nil
	}
	return err
}

// run runs a program of e2fsprogs.
func run(ctx context.Context, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/" + name); err != nil {
			return fmt.Errorf("a volume with a size needs the program %s: apt install e2fsprogs, or leave size out", name)
		}
	}
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.Join(strings.Fields(string(out)), " "))
	}
	return nil
}
