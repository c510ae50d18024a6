// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockEvery is the pause between two attempts to lock a volume.
const lockEvery = 20 * time.Millisecond

// lock locks a volume until the returned file is closed, or this process ends. It waits until ctx ends. The error
// wraps fs.ErrNotExist if there is no such volume.
func (p place) lock(ctx context.Context) (*os.File, error) {
	for {
		f, err := p.tryLock()
		if err != nil || f != nil {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("it is being backed up, restored or changed by another process: %w", ctx.Err())
		case <-time.After(lockEvery):
		}
	}
}

// lockRecord locks a volume as lock does, and returns its record. The error wraps ErrNotFound if there is no such
// volume.
func (p place) lockRecord(ctx context.Context) (*os.File, Record, error) {
	lock, err := p.lock(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Record{}, ErrNotFound
	}
	if err != nil {
		return nil, Record{}, err
	}
	r, err := p.record()
	if err != nil {
		return nil, Record{}, errors.Join(err, lock.Close())
	}
	return lock, r, nil
}

// tryLock returns nil if the lock is taken, or if the folder was replaced meanwhile.
func (p place) tryLock() (*os.File, error) {
	f, err := os.Open(string(p))
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, fmt.Errorf("lock %s: %w", p, err)
	}
	mine, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if there, err := os.Stat(string(p)); err != nil || !os.SameFile(mine, there) {
		f.Close()
		return nil, err
	}
	return f, nil
}
