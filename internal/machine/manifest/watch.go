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
	// quietTime is how long the files must stay unchanged before a change is read, because an editor writes, renames
	// and removes within a moment. settleTime bounds the wait while changes keep coming.
	quietTime  = 20 * time.Millisecond
	settleTime = 50 * time.Millisecond
	// maxWriting is how often Watch waits for a file that is still being written, settleTime each time.
	maxWriting = 20
)

// Watch calls onChange with what Load returns, unless the last Load returned the same without an error, and again
// after each change of the files, until ctx ends. It then returns nil. A result that differs from the one before
// neither in the services nor in the error is not reported. Watch notices files written in place, files replaced by a
// rename or by a symlink that points elsewhere (editors, mounted ConfigMaps), files added to and removed from a
// folder, and sources that disappear and come back. Calls of onChange do not overlap. Watch returns an error if the
// kernel refuses to watch.
func (r *Reader) Watch(ctx context.Context, onChange func(Set, error)) error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch manifests: %w: raise fs.inotify.max_user_instances", err)
	}
	defer notify.Close()
	w := &watch{reader: r, notify: notify, onChange: onChange}
	w.lastReported, w.reported = r.lastLoad()
	if err := w.follow(); err != nil {
		return err
	}
	w.load(ctx)
	return w.run(ctx)
}

// watch is the state of one Watch.
type watch struct {
	reader       *Reader
	notify       *fsnotify.Watcher
	onChange     func(Set, error)
	plan         *watchPlan
	lastReported Set    // the set that the caller has
	reported     bool   // whether the caller has lastReported, even if it is empty
	lastError    string // the error that the caller was last given; empty if there was none
}

func (w *watch) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	var first time.Time // of the changes not read yet; zero: none
	writing := 0
	changed := func() {
		now := time.Now()
		if first.IsZero() {
			first = now
		}
		timer.Reset(min(quietTime, max(0, settleTime-now.Sub(first))))
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
				changed() // events were lost, so anything may have changed
			} else {
				w.fail(fmt.Errorf("watch manifests: %w", err))
			}
		case <-timer.C:
			if writing < maxWriting && w.reader.sources.beingWritten() {
				writing++
				timer.Reset(settleTime)
				continue
			}
			first, writing = time.Time{}, 0
			// Watch before reading, so that a change in between makes an event.
			if err := w.follow(); err != nil {
				w.fail(err)
			}
			w.load(ctx)
		}
	}
}

func (w *watch) fail(err error) {
	if text := err.Error(); text != w.lastError {
		w.lastError = text
		w.onChange(w.lastReported, err)
	}
}

// load reads everything and reports what changed.
func (w *watch) load(ctx context.Context) {
	set, err := w.reader.Load(ctx)
	if ctx.Err() != nil {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	added, changed, removed := Diff(w.lastReported, set)
	if w.reported && w.lastError == text && len(added)+len(changed)+len(removed) == 0 {
		return
	}
	w.lastReported, w.reported, w.lastError = set, true, text
	w.onChange(set, err)
}

// follow makes the kernel watch the folders of a new plan.
func (w *watch) follow() error {
	for range maxLinks {
		plan := planWatch(w.reader.sources.names)
		for _, dir := range w.notify.WatchList() {
			if plan.dirs[dir] {
				continue
			}
			// The watch may be gone already, together with its folder.
			err := w.notify.Remove(dir)
			if err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("stop watching %s: %w", dir, err)
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
				return fmt.Errorf("watch %s: %w: if no space is left, raise fs.inotify.max_user_watches", dir, err)
			}
		}
		w.plan = plan
		if complete {
			return nil
		}
		// Something may have moved before it was watched: plan again.
	}
	return nil
}
