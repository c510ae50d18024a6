// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/unzstd"
)

// tarFlags preserve what a volume can contain. GNU tar is used because archive/tar lacks sparse files, ACLs and
// extended attributes.
var tarFlags = []string{"--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls", "--sparse"}

// Backup writes the content of a volume to w, as a tar archive compressed with zstd. A pod that is started meanwhile
// waits. A volume that a pod holds, and may change, is copied only if live is set; otherwise Backup returns a
// HeldError.
func (s *Store) Backup(ctx context.Context, id ID, w io.Writer, live bool) error {
	v := s.at(id)
	lock, r, err := v.lockRecord(ctx)
	if err != nil {
		return fmt.Errorf("volume %s: %w", id, err)
	}
	defer lock.Close()
	if err := s.unheld(r); err != nil && !live {
		return err
	}
	packed, err := zstd.NewWriter(w)
	if err != nil {
		return err
	}
	err = v.mounted(r, func() error {
		args := append([]string{"--create", "--format=posix", "--directory", v.fs()}, tarFlags...)
		return tar(ctx, nil, packed, live, append(args, dataDir)...)
	})
	if err := errors.Join(err, packed.Close()); err != nil {
		return fmt.Errorf("back up volume %s: %w", id, err)
	}
	return nil
}

// Restore replaces the content of a volume with a backup, which may be compressed with zstd or gzip. The old
// content stays until the new one is complete, and if anything fails. A volume that does not exist is made with size;
// for one that exists, size must be 0 and replace set.
func (s *Store) Restore(ctx context.Context, id ID, from io.Reader, size int64, replace bool) (err error) {
	defer func() {
		if held := (HeldError{}); err != nil && !errors.As(err, &held) {
			err = fmt.Errorf("restore volume %s: %w", id, err)
		}
	}()
	if err := id.check(); err != nil {
		return err
	}
	v := s.at(id)
	lock, r, err := v.lockRecord(ctx)
	if errors.Is(err, ErrNotFound) {
		return s.restoreNew(ctx, Record{Namespace: id.Namespace, Name: id.Name, SizeBytes: size}, from)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := s.unheld(r); err != nil {
		return err
	}
	switch {
	case !replace:
		return errors.New("it already exists: add --replace to replace its content")
	case size != 0 && size != r.SizeBytes:
		return errors.New("it exists with another size: leave --size out, or remove the volume first ('wangell volume rm')")
	}
	next := place(filepath.Join(s.dir, newDir, newSerial()))
	defer func() { err = errors.Join(err, next.destroy()) }()
	making, err := next.begin()
	if err != nil {
		return err
	}
	defer making.Close()
	if err := next.extract(ctx, r, from); err != nil {
		return err
	}
	if err := v.unmount(); err != nil {
		return err
	}
	what := place.fs
	if r.SizeBytes > 0 {
		what = place.disk
	}
	if err := unix.Renameat2(unix.AT_FDCWD, what(next), unix.AT_FDCWD, what(v), unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange old and new content: %w", err)
	}
	return syncDir(string(v))
}

// restoreNew makes a volume with the content of a backup.
func (s *Store) restoreNew(ctx context.Context, r Record, from io.Reader) error {
	return s.put(r, func(v place, r Record) error { return v.extract(ctx, r, from) })
}

// extract makes the folder of a volume with the content of a backup.
func (p place) extract(ctx context.Context, r Record, from io.Reader) error {
	if err := p.build(ctx, r.SizeBytes); err != nil {
		return err
	}
	return p.mounted(r, func() error {
		plain, err := unzstd.Decompress(from)
		if err != nil {
			return err
		}
		defer plain.Close()
		args := append([]string{"--extract", "--preserve-permissions", "--same-owner", "--directory", p.fs()}, tarFlags...)
		if err := tar(ctx, plain, nil, false, append(args, dataDir)...); err != nil {
			return err
		}
		if info, err := os.Lstat(p.data()); err != nil || !info.IsDir() {
			return errors.New("this is not a backup of a volume: it has no folder data")
		}
		return nil
	})
}

// tar runs GNU tar. With changing set, files may change while they are read.
func tar(ctx context.Context, in io.Reader, out io.Writer, changing bool, args ...string) error {
	var messages bytes.Buffer
	cmd := exec.CommandContext(ctx, "tar", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &messages
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); changing && errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil // "some files differ" (tar(1), RETURN VALUE)
	}
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New("tar is not in $PATH: apt install tar")
	}
	if err != nil {
		return fmt.Errorf("tar: %w: %s", err, clip(strings.Join(strings.Fields(messages.String()), " ")))
	}
	return nil
}

// clip shortens the output of a program, which may name every file.
func clip(text string) string {
	const most = 300
	if len(text) > most {
		return text[:most] + " ..."
	}
	return text
}
