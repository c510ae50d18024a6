// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"errors"
	"io/fs"
	"slices"
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
		d.calls[dir] = entered
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

// Folders returns the folders of the cgroup and of those below it, as they were when the watch began.
func (w *Watched) Folders() []string { return w.dirs }

// WatchPipes calls written whenever something is written into one of these named pipes, until Stop is called. Pipes
// that do not exist are ignored. written must not block, and may be called once more after Stop. Call it once.
func (w *Watched) WatchPipes(pipes []string, written func()) error {
	d := w.doors
	d.mu.Lock()
	w.pipes = pipes
	for _, pipe := range pipes {
		d.calls[pipe] = written
	}
	d.mu.Unlock()
	for _, pipe := range pipes {
		if err := d.watcher.Add(pipe); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Stop ends the watch.
func (w *Watched) Stop() {
	d := w.doors
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, path := range slices.Concat(w.dirs, w.pipes) {
		delete(d.calls, path)
		_ = d.watcher.Remove(path) // it may be gone with its cgroup or container
	}
	delete(d.counted, w)
}
