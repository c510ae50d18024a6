// SPDX-License-Identifier: Apache-2.0

// Package freezer stops and resumes all processes of a cgroup, by the freezer of version 2 or 1, and moves their memory
// to swap. Paths of cgroups are below the root of the hierarchies, as runtimes give them.
//
// See https://docs.kernel.org/admin-guide/cgroup-v2.html (cgroup.freeze, memory.reclaim) and
// https://docs.kernel.org/admin-guide/cgroup-v1/freezer-subsystem.html.
package freezer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/cgroup"
)

// Freezer freezes cgroups of the hierarchies at a root.
type Freezer struct{ root string }

// New returns a Freezer for the hierarchies at root; empty means cgroup.DefaultRoot.
func New(root string) *Freezer {
	if root == "" {
		root = cgroup.DefaultRoot
	}
	return &Freezer{root}
}

// control is the file that freezes a cgroup.
type control struct {
	file         string
	freeze, thaw string
	state        string // the file with the state
	frozen       string // its line in a frozen cgroup
}

// errNoFreezer is returned for cgroups that do not exist, or have no freezer.
var errNoFreezer = errors.New("there is no such cgroup with a freezer")

// places are where the file for a cgroup may be: in the only hierarchy, in that of the freezer, or in version 2 beside
// version 1.
var places = []string{"", "freezer", "unified"}

// controlIn is the file for a cgroup in one of the places.
func (f *Freezer) controlIn(place, cgroup string) control {
	dir := filepath.Join(f.root, place, cgroup)
	if place == "freezer" {
		state := filepath.Join(dir, "freezer.state")
		return control{state, "FROZEN", "THAWED", state, "FROZEN"}
	}
	return control{filepath.Join(dir, "cgroup.freeze"), "1", "0", filepath.Join(dir, "cgroup.events"), "frozen 1"}
}

// control finds the file for a cgroup.
func (f *Freezer) control(cgroup string) (control, error) {
	for _, place := range places {
		c := f.controlIn(place, cgroup)
		if _, err := os.Stat(c.file); err == nil {
			return c, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return control{}, err
		}
	}
	return control{}, fmt.Errorf("cgroup %s: %w", cgroup, errNoFreezer)
}

// isFrozen reads whether the cgroup is frozen.
func (c control) isFrozen() (bool, error) {
	text, err := os.ReadFile(c.state)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(text)) {
		if strings.TrimSpace(line) == c.frozen {
			return true, nil
		}
	}
	return false, nil
}

// Gone reports whether a cgroup does not exist, or cannot be frozen at all.
func (f *Freezer) Gone(cgroup string) bool {
	_, err := f.control(cgroup)
	return errors.Is(err, errNoFreezer)
}

// pollEvery is the pause between two looks at a cgroup that is being frozen.
const pollEvery = time.Millisecond

// Freeze stops all processes of a cgroup and returns once they stand still. A process in an uninterruptible sleep,
// such as one that waits for a disk, delays that. If ctx ends first, the processes run on.
func (f *Freezer) Freeze(ctx context.Context, cgroup string) error {
	c, err := f.control(cgroup)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.file, []byte(c.freeze), 0); err != nil {
		return fmt.Errorf("freezing cgroup %s: %w", cgroup, err)
	}
	for {
		frozen, err := c.isFrozen()
		if err == nil && frozen {
			return nil
		}
		if err == nil {
			select {
			case <-time.After(pollEvery):
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		return errors.Join(fmt.Errorf("freezing cgroup %s: %w", cgroup, err), f.Thaw(cgroup))
	}
}

// Thaw lets the processes of a cgroup run. It does nothing if they do. Clients wait for it: os.WriteFile, which
// truncates the file and has Go's poller watch it, would take twice as long.
func (f *Freezer) Thaw(cgroup string) error {
	for _, place := range places {
		c := f.controlIn(place, cgroup)
		if err := write(c.file, c.thaw); err == nil {
			return nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("thawing cgroup %s: %w", cgroup, err)
		}
	}
	return fmt.Errorf("cgroup %s: %w", cgroup, errNoFreezer)
}

// write writes to a file of a cgroup.
func write(file, text string) error {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return &fs.PathError{Op: "write", Path: file, Err: err}
	}
	return nil
}

// Frozen reports whether the processes of a cgroup stand still.
func (f *Freezer) Frozen(cgroup string) (bool, error) {
	c, err := f.control(cgroup)
	if err != nil {
		return false, err
	}
	return c.isFrozen()
}
