// SPDX-License-Identifier: Apache-2.0

// Package tempdir makes temporary folders that do not outlive their process for long: what a killed one has left is
// removed by the next one that makes such a folder.
package tempdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockFile is the file in each folder that its process keeps locked (flock(2)).
const lockFile = ".lock"

// Dir is a temporary folder.
type Dir struct {
	// Path is the folder's path.
	Path   string
	lock   *os.File
	remove func(dir string) error
}

// Make makes a folder in parent, or in the default folder for temporary files if that is empty. Its name begins with
// prefix. First, Make removes the folders of this user with that prefix whose processes have ended without Remove.
// remove removes a folder with all that is in it, and is also what Remove calls.
//
// A folder that cannot be removed stays, and does not keep Make from making another one.
func Make(parent, prefix string, remove func(dir string) error) (*Dir, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	left, err := filepath.Glob(filepath.Join(parent, prefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, path := range left {
		if d := adopt(path, remove); d != nil {
			_ = d.Remove() // which the next one tries again
		}
	}
	path, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return nil, fmt.Errorf("make a temporary folder: %w", err)
	}
	d := &Dir{Path: path, remove: remove}
	// The file has its name only once it is locked: another process must not take this folder for an abandoned one.
	unnamed := filepath.Join(path, lockFile+".new")
	d.lock, err = os.OpenFile(unnamed, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(unnamed, filepath.Join(path, lockFile))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock a temporary folder: %w", err), d.Remove())
	}
	return d, nil
}

// adopt returns the folder of a process of this user that has ended; nil if it is another one.
func adopt(path string, remove func(dir string) error) *Dir {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil
	}
	return &Dir{Path: path, lock: f, remove: remove}
}

// Remove removes the folder.
func (d *Dir) Remove() error {
	err := d.remove(d.Path)
	if d.lock != nil {
		d.lock.Close()
	}
	return err
}
