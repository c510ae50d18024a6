// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockAgain is the interval of attempts to take a lock that another daemon holds.
const lockAgain = 50 * time.Millisecond

// errLocked means that another daemon holds the lock.
var errLocked = errors.New("another daemon uses this folder")

// lock waits until no other daemon uses a folder, because the previous one may still be ending, and locks it.
func lock(ctx context.Context, runDir string, log *slog.Logger) (unlock func() error, err error) {
	for logged := false; ; logged = true {
		unlock, err := tryLock(runDir)
		if !errors.Is(err, errLocked) {
			return unlock, err
		}
		if !logged {
			log.Info("waiting for another daemon to end", "folder", runDir)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockAgain):
		}
	}
}

// tryLock locks a folder, or returns errLocked. The kernel releases the lock when the process ends, in whatever way. A
// folder that does not exist needs no lock.
func tryLock(runDir string) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(runDir, "daemon.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, fmt.Errorf("locking the daemon's folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", runDir, errLocked)
		}
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return f.Close, nil
}
