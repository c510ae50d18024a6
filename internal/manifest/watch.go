// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

const (
	// quiet is how long nothing must change before a change is read: an editor writes, renames and
	// removes within a moment. settle bounds the wait while more and more changes.
	quiet  = 20 * time.Millisecond
	settle = 50 * time.Millisecond
	// maxWriting is how often a file that somebody is still writing is waited for, settle each time.
	maxWriting = 20
)

// Watch reads sources again whenever one of their files changes; see Reader.Watch. With "-" among
// the sources, use a Reader: it remembers what standard input held.
func Watch(ctx context.Context, sources []string, onChange func(Set, error)) error {
	return NewReader(sources, nil).Watch(ctx, onChange)
}

// Watch reads the sources and calls onChange with what they hold now, if that is not what the last
// Load gave, and then after every change of their files, until ctx ends; then it returns nil. If
// what is there is broken, onChange gets the error and the last set that was right (nil if there
// was none yet); one error is told once. It sees files written in place and files replaced (by a
// rename or by a symlink that points elsewhere, as an editor and Kubernetes do), files that come to
// and go from a folder, and sources that are removed and come back. Calls do not overlap. Watch
// returns an error if the kernel does not let it watch.
func (r *Reader) Watch(ctx context.Context, onChange func(Set, error)) error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching manifests: %w: raise fs.inotify.max_user_instances", err)
	}
	defer notify.Close()
	w := &watch{reader: r, notify: notify, onChange: onChange}
	r.mu.Lock()
	w.known, w.told = r.good, r.loaded
	r.mu.Unlock()
	if err := w.follow(); err != nil {
		return err
	}
	w.load(ctx)
	return w.run(ctx)
}

// watch is the state of one Watch.
type watch struct {
	reader   *Reader
	notify   *fsnotify.Watcher
	onChange func(Set, error)
	plan     *watchPlan
	known    Set    // what the caller has
	told     bool   // the caller has known, even if it is empty
	broken   string // the error that the caller knows of
}

func (w *watch) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	var first time.Time // of the changes that wait to be read; zero: none
	writing := 0
	changed := func() {
		now := time.Now()
		if first.IsZero() {
			first = now
		}
		timer.Reset(min(quiet, max(0, settle-now.Sub(first))))
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-w.notify.Events:
			if !ok {
				return nil
			}
			if w.plan.concerns(ev.Name) {
				changed()
			}
		case err, ok := <-w.notify.Errors:
			if !ok {
				return nil
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				changed() // events were lost: anything may have changed
			} else {
				w.fail(fmt.Errorf("watching manifests: %w", err))
			}
		case <-timer.C:
			if writing < maxWriting && w.beingWritten() {
				writing++
				timer.Reset(settle)
				continue
			}
			first, writing = time.Time{}, 0
			// Watch first and read then: what changes in between is an event.
			if err := w.follow(); err != nil {
				w.fail(err)
			}
			w.load(ctx)
		}
	}
}

func (w *watch) fail(err error) {
	if text := err.Error(); text != w.broken {
		w.broken = text
		w.onChange(w.known, err)
	}
}

// load reads everything and tells what is new.
func (w *watch) load(ctx context.Context) {
	set, err := w.reader.Load(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		w.fail(err)
		return
	}
	added, changed, removed := Diff(w.known, set)
	if w.told && w.broken == "" && len(added)+len(changed)+len(removed) == 0 {
		return
	}
	w.known, w.told, w.broken = set, true, ""
	w.onChange(set, nil)
}

// follow makes the kernel watch what the plan of this moment says.
func (w *watch) follow() error {
	for range maxLinks {
		plan := planWatch(w.reader.sources)
		for _, dir := range w.notify.WatchList() {
			if !plan.dirs[dir] {
				// It may be gone by itself, with its folder.
				if err := w.notify.Remove(dir); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) && !errors.Is(err, unix.EINVAL) {
					return fmt.Errorf("watching %s no longer: %w", dir, err)
				}
			}
		}
		have := w.notify.WatchList()
		complete := true
		for dir := range plan.dirs {
			if slices.Contains(have, dir) {
				continue
			}
			complete = false
			if err := w.notify.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("watching %s: %w: raise fs.inotify.max_user_watches if no space is left", dir, err)
			}
		}
		w.plan = plan
		if complete {
			return nil
		}
		// Something may have moved before it was watched: look again.
	}
	return nil
}

// beingWritten tells whether somebody has one of the files open for writing, so that what is in it
// may be half of what is meant. The kernel knows: it grants a read lease (fcntl(2), F_SETLEASE) only
// on a file that nobody has open for writing. Where the file system has no leases, the answer is no.
func (w *watch) beingWritten() bool {
	for _, f := range w.reader.files(new(Errors)) {
		if f.regular && openForWriting(f.name) {
			return true
		}
	}
	return false
}

func openForWriting(name string) bool {
	file, err := os.Open(name)
	if err != nil {
		return false
	}
	defer file.Close()
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return errors.Is(err, unix.EAGAIN)
	}
	_, _ = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK) // closing ends it, too
	return false
}
