// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// PipesDir is the folder of the pipes of commands in pods, in the run folder dir. Each call of Attach or Executor.Exec
// has a folder of its own there, which it holds locked (flock(2)): the kernel drops the lock of a caller that is
// killed, and so marks its pipes as orphaned.
func PipesDir(dir string) string { return filepath.Join(dir, "exec") }

const pipesPattern = "caller-*"

// pipesFolder is the folder of one caller, or of one that is gone.
type pipesFolder struct {
	path string
	lock *os.File
}

// openPipes makes a folder in dir for the pipes of a command. close removes it.
func openPipes(dir string) (*pipesFolder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder for the pipes of commands: %w", err)
	}
	for {
		path, err := os.MkdirTemp(dir, pipesPattern)
		if err != nil {
			return nil, fmt.Errorf("folder for the pipes of a command: %w", err)
		}
		folder, err := lockPipes(path)
		if folder != nil || err != nil {
			return folder, err
		}
		// An orphan search has removed the new folder before it was locked.
	}
}

// lockPipes locks a folder. It returns nil if another process has it or has removed it.
func lockPipes(path string) (*pipesFolder, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("folder for the pipes of a command: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err == nil {
		return &pipesFolder{path, f}, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// close removes the folder with what is in it, and unlocks it.
func (f *pipesFolder) close() {
	_ = os.RemoveAll(f.path)
	_ = f.lock.Close()
}

// pipes are the output pipes of a command whose caller is gone. The shim waits for a reader of its output before it
// reports the PID of a command that starts, for up to 30 seconds, in which the container cannot be stopped.
type pipes struct {
	dirs []string
	open []*os.File
}

// inheritPipes begins to read and discard the output of a command. It finds no pipes if its caller has removed them.
func inheritPipes(dir, id string) (*pipes, error) {
	p := &pipes{}
	for _, stream := range []string{"stdout", "stderr"} {
		files, err := filepath.Glob(filepath.Join(dir, pipesPattern, "*", id+"-"+stream))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if folder := filepath.Dir(filepath.Dir(file)); !slices.Contains(p.dirs, folder) {
				p.dirs = append(p.dirs, folder)
			}
			// With O_RDWR, this call does not wait for a writer, and the shim does not wait for a reader.
			f, err := os.OpenFile(file, os.O_RDWR|unix.O_NONBLOCK, 0)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, errors.Join(err, p.remove())
			}
			p.open = append(p.open, f)
			go func() { _, _ = io.Copy(io.Discard, f) }() // until remove closes it
		}
	}
	return p, nil
}

// remove closes the pipes and removes their folder.
func (p *pipes) remove() error {
	var errs []error
	for _, f := range p.open {
		errs = append(errs, f.Close())
	}
	for _, dir := range p.dirs {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// orphan is a command whose caller was killed.
type orphan struct {
	id    string
	pipes *pipes
	lock  *os.File // of their folder
}

// findOrphans takes the commands in pods whose callers were killed, and begins to read their output, so that the shims
// of their pods wait no longer for a reader. Folders in which no command has pipes are removed.
func findOrphans(dir string) (found []orphan, err error) {
	folders, err := filepath.Glob(filepath.Join(dir, pipesPattern))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, path := range folders {
		folder, err := lockPipes(path)
		if folder == nil {
			errs = append(errs, err)
			continue
		}
		files, _ := filepath.Glob(filepath.Join(path, "*", "*-stdout")) // the pattern is well formed
		if len(files) == 0 {
			folder.close()
			continue
		}
		// A caller runs one command.
		id := strings.TrimSuffix(filepath.Base(files[0]), "-stdout")
		p, err := inheritPipes(dir, id)
		if err != nil {
			errs = append(errs, err, folder.lock.Close())
			continue
		}
		found = append(found, orphan{id, p, folder.lock})
	}
	return found, errors.Join(errs...)
}
