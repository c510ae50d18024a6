// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces files in one step.
package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces a file (mode 0600) in one step: no reader sees half of it, not even after a crash of the machine.
func Write(path string, data []byte) error {
	return replace(path, 0o600, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// Into writes to a path that a user has named. A file is replaced in one step, with the given mode, once write has
// succeeded. Whatever else has the name stays and is written to, such as /dev/stdout or a named pipe.
func Into(path string, mode fs.FileMode, write func(io.Writer) error) error {
	if info, err := os.Stat(path); err != nil || info.Mode().IsRegular() {
		return replace(path, mode, write)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

func replace(path string, mode fs.FileMode, write func(io.Writer) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		if p := (*fs.PathError)(nil); errors.As(err, &p) {
			p.Path = path // not the temporary one
		}
		return err
	}
	defer os.Remove(tmp.Name()) // fails once it is renamed
	if err = write(tmp); err == nil {
		err = errors.Join(tmp.Chmod(mode), tmp.Sync())
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
