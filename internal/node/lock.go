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

// lockAgain is how often a lock that another daemon holds is tried.
const lockAgain = 50 * time.Millisecond

// errLocked: another daemon runs there.
var errLocked = errors.New("another daemon runs in this folder")

// lock waits until no other daemon runs in a folder: an older one may be ending still.
func lock(ctx context.Context, runDir string, log *slog.Logger) (unlock func() error, err error) {
	for told := false; ; told = true {
		unlock, err := tryLock(runDir)
		if !errors.Is(err, errLocked) {
			return unlock, err
		}
		if !told {
			log.Info("another daemon runs; waiting for it to end", "folder", runDir)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockAgain):
		}
	}
}

// tryLock takes the lock of a folder. The kernel gives it back when the process ends, however it ends. Where there is no
// folder there is nothing to lock.
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
