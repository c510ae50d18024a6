// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"wangell.loutres.me/internal/base/cgroup"
)

// countEvery is the pause between two counts of the processes in cgroups of version 2.
const countEvery = 500 * time.Millisecond

// opensSilently reports whether processes can enter a cgroup without a write to any of its files: in version 2 they can
// be born inside although their parent is not (CLONE_INTO_CGROUP in clone(2)), as runc does it for exec from 1.4 on.
func (f *Freezer) opensSilently(cgroup string) bool {
	c, err := f.control(cgroup)
	return err == nil && strings.HasSuffix(c.file, "cgroup.freeze")
}

// countIn begins to count the processes of a cgroup.
func (d *Doors) countIn(w *Watched) error {
	n, err := d.freezer.tasks(w.cgroup)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w.tasks, d.counted[w] = n, true
	if !d.counting {
		d.counting = true
		go d.count()
	}
	return nil
}

// Recount takes the processes that are inside as known. Call it before a cgroup is frozen again, and before a look at
// the processes inside. With version 1 it does nothing.
func (w *Watched) Recount() {
	n, err := uint64(0), error(nil)
	if w.doors.freezer.opensSilently(w.cgroup) {
		n, err = w.doors.freezer.tasks(w.cgroup)
	}
	if err == nil {
		w.doors.mu.Lock()
		w.tasks = n
		w.doors.mu.Unlock()
	}
}

// count counts processes until no cgroup is left to count.
func (d *Doors) count() {
	ticker := time.NewTicker(countEvery)
	defer ticker.Stop()
	for {
		select {
		case <-d.closed:
			return
		case <-ticker.C:
		}
		d.mu.Lock()
		all := make([]*Watched, 0, len(d.counted))
		for w := range d.counted {
			all = append(all, w)
		}
		d.counting = len(all) > 0
		d.mu.Unlock()
		if len(all) == 0 {
			return
		}
		for _, w := range all {
			if d.more(w) {
				w.entered()
			}
		}
	}
}

// more reports whether processes have entered a frozen cgroup since the last call. While it is not frozen, its own
// processes may start others.
func (d *Doors) more(w *Watched) bool {
	n, err := d.freezer.tasks(w.cgroup)
	if err != nil {
		return false // it is gone
	}
	d.mu.Lock()
	known := w.tasks
	w.tasks = min(known, n)
	d.mu.Unlock()
	if n <= known {
		return false
	}
	if frozen, err := d.freezer.Frozen(w.cgroup); err != nil || !frozen {
		return false
	}
	d.mu.Lock()
	w.tasks = n
	d.mu.Unlock()
	return true
}

// tasks returns the number of tasks in a cgroup of version 2 and those below it: from the pids controller, which
// kubelet uses for all pods, or else the number of listed processes.
func (f *Freezer) tasks(path string) (uint64, error) {
	n, err := cgroup.Number(filepath.Join(f.root, path, "pids.current"))
	if !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	pids, err := f.processes(path)
	return uint64(len(pids)), err
}
