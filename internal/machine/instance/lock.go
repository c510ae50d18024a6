// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/process"
)

// RunningError is returned if the run folder belongs to a running instance.
type RunningError struct {
	RunDir string
	// PID is the process of the instance; 0 if it is not visible from here.
	PID int
}

// Error implements error.
func (e *RunningError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s belongs to a running instance: stop it, or give another --run-dir", e.RunDir)
	}
	return fmt.Sprintf("%s belongs to a running instance (pid %d): stop it with 'wangell down', "+
		"or give another --run-dir", e.RunDir, e.PID)
}

// lock is the exclusive right to a run folder. The kernel releases it when the process ends, for whatever reason.
type lock struct{ file *os.File }

// acquireState locks a state folder for as long as this process lives. Two instances on one state folder would start
// two containerds on one root. The lock's file stays.
func acquireState(c Config) (*os.File, error) {
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	f, err := os.OpenFile(c.stateLockFile(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state folder: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		if err = c.ownsState(); err == nil {
			return f, nil
		}
		f.Close()
		return nil, err
	}
	f.Close()
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	pid, _ := holderOf(c.stateLockFile())
	return nil, fmt.Errorf("%s belongs to another running instance (pid %d): stop that one, or give another --state-dir",
		c.StateDir, pid)
}

// noteRunDir records in the lock of a state folder which run folder its instance has.
func noteRunDir(state *os.File, runDir string) error {
	// What is there already needs no room on a full disk.
	if text, err := os.ReadFile(state.Name()); err == nil && strings.TrimSpace(string(text)) == runDir {
		return nil
	}
	if err := errors.Join(state.Truncate(0), writeAt(state, runDir+"\n")); err != nil {
		return fmt.Errorf("write %s: %w", state.Name(), err)
	}
	return nil
}

// ownsState returns an error if the state folder belongs to an instance with another run folder, which runs or was
// killed: only that run folder tells which pods use its volumes, and a killed instance's containerd keeps running.
func (c Config) ownsState() error {
	text, err := os.ReadFile(c.stateLockFile())
	owner := strings.TrimSpace(string(text))
	if errors.Is(err, os.ErrNotExist) || err == nil && owner == "" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock of the state folder: %w", err)
	}
	left, found, err := load(owner)
	if err != nil {
		return err
	}
	if !found || sameFile(owner, c.RunDir) || !sameFile(left.StateDir, c.StateDir) {
		return nil
	}
	return fmt.Errorf("%s is the state folder of the instance with --run-dir %s, which runs or was killed: add that "+
		"flag, or end the instance first ('wangell down --run-dir %s')", c.StateDir, owner, owner)
}

// sameFile reports whether two paths name one file.
func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// acquire locks a run folder, which it makes if necessary (mode 0700). The error is a *RunningError if another process
// has the lock.
func acquire(c Config) (*lock, error) {
	for {
		l, err := tryAcquire(c)
		if err != nil || l != nil {
			return l, err
		}
	}
}

// tryAcquire returns nil if the file was removed by its last owner between opening and locking.
func tryAcquire(c Config) (*lock, error) {
	if err := os.MkdirAll(c.RunDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the run folder: %w", err)
	}
	f, err := os.OpenFile(c.lockFile(), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the lock of the run folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		pid, _ := holder(c)
		return nil, &RunningError{RunDir: c.RunDir, PID: pid}
	}
	mine, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock of the run folder: %w", err)
	}
	if there, err := os.Stat(f.Name()); err != nil || !os.SameFile(mine, there) {
		f.Close()
		return nil, nil
	}
	// The number is for people only: holder asks the kernel.
	pid := strconv.Itoa(os.Getpid()) + "\n"
	if err := errors.Join(f.Truncate(0), writeAt(f, pid)); err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", f.Name(), err)
	}
	return &lock{f}, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// release releases the lock and keeps the folder.
func (l *lock) release() error { return l.file.Close() }

// remove removes the run folder and releases the lock. The lock file goes last, so that no other instance gets a folder
// that is half removed. A mount in the folder is not touched: it is an error.
func (l *lock) remove() error {
	dir := filepath.Dir(l.file.Name())
	err := removeContents(dir, l.file.Name())
	if err == nil {
		err = errors.Join(os.Remove(l.file.Name()), os.Remove(dir))
	}
	return errors.Join(err, l.file.Close())
}

// removeContents empties a folder except for one file. It does not cross into other file systems mounted below, whose
// files are not the instance's.
func removeContents(dir, except string) error {
	var home unix.Stat_t
	if err := unix.Lstat(dir, &home); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if st.Dev != home.Dev {
			return fmt.Errorf("%s is still mounted", path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); path != except {
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("remove %s: %w", path, err)
			}
		}
	}
	return nil
}

// holder returns the process that holds the lock of a run folder, according to the kernel (proc_locks(5)); 0 if none
// does. The PID in the file is not trusted.
func holder(c Config) (int, error) { return holderOf(c.lockFile()) }

// holderOf is holder for a lock's file.
func holderOf(file string) (int, error) {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return 0, nil
		}
		return 0, fmt.Errorf("lock of the run folder: %w", err)
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if pid, inode := parseFlock(s.Text()); inode == st.Ino && pid > 0 && hasOpen(pid, &st) {
			return pid, nil
		}
	}
	return 0, nil
}

// openHolder opens the process that holds the lock of a file; nil if none does.
func openHolder(file string) (*process.Process, error) {
	pid, err := holderOf(file)
	if err != nil || pid == 0 {
		return nil, err
	}
	p, err := process.Open(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("process with the lock %s: %w", file, err)
	}
	// The number may have been given to another process before it was opened: the lock's holder is the right one.
	if now, err := holderOf(file); err != nil || now != pid {
		p.Close()
		return nil, err
	}
	return p, nil
}

// parseFlock parses a line of /proc/locks: "1: FLOCK  ADVISORY  WRITE 1234 00:1a:567 0 EOF" gives 1234 and 567. Other
// kinds of lock give 0. The line of a waiting process has "->" in its second field.
func parseFlock(line string) (pid int, inode uint64) {
	fields := strings.Fields(line)
	if len(fields) < 6 || fields[1] != "FLOCK" || fields[3] != "WRITE" {
		return 0, 0
	}
	pid, err := strconv.Atoi(fields[4])
	if err != nil {
		return 0, 0
	}
	device := strings.Split(fields[5], ":")
	if inode, err = strconv.ParseUint(device[len(device)-1], 10, 64); err != nil {
		return 0, 0
	}
	return pid, inode
}

// hasOpen reports whether a process has a file open. Inode numbers are not unique across file systems, and the device
// number in /proc/locks is not always the one in stat(2) (btrfs).
func hasOpen(pid int, file *unix.Stat_t) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(dir, e.Name()), &st) == nil && st.Dev == file.Dev && st.Ino == file.Ino {
			return true
		}
	}
	return false
}
