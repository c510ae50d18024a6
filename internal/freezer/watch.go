// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"errors"
	"io/fs"
)

// Watch calls entered whenever a process enters a cgroup or one below it, or another one is made in it, until Stop is
// called. A process that is born inside while the cgroup is not frozen does not count. entered must not block, and may
// be called once more after Stop.
func (d *Doors) Watch(cgroup string, entered func()) (*Watched, error) {
	dirs, err := d.freezer.tree(cgroup)
	if err != nil {
		return nil, err
	}
	w := &Watched{doors: d, cgroup: cgroup, dirs: dirs, entered: entered}
	d.mu.Lock()
	for _, dir := range dirs {
		d.entered[dir] = entered
	}
	d.mu.Unlock()
	for _, dir := range dirs {
		if err := d.watcher.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.Stop()
			return nil, err
		}
	}
	if d.freezer.opensSilently(cgroup) {
		if err := d.countIn(w); err != nil {
			w.Stop()
			return nil, err
		}
	}
	return w, nil
}

// Stop ends the watch.
func (w *Watched) Stop() {
	d := w.doors
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dir := range w.dirs {
		delete(d.entered, dir)
		_ = d.watcher.Remove(dir) // it may be gone with its cgroup
	}
	delete(d.counted, w)
}
