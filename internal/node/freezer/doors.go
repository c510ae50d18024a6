// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"errors"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// Doors reports processes that enter cgroups from outside, as for exec: it watches for the container runtime's writes
// to cgroup.procs (inotify(7)), which costs no CPU. With version 2 it counts processes as well. It also reports what is
// written into named pipes, such as those of standard input.
type Doors struct {
	freezer *Freezer
	watcher *fsnotify.Watcher

	mu       sync.Mutex
	calls    map[string]func() // by the folder of a cgroup, or the path of a pipe
	counted  map[*Watched]bool // those that are counted
	counting bool              // a goroutine counts them
	closed   chan struct{}
}

// Doors returns a Doors, which the caller must close. It uses one of the machine's inotify instances.
func (f *Freezer) Doors() (*Doors, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	d := &Doors{freezer: f, watcher: w, calls: map[string]func(){}, counted: map[*Watched]bool{},
		closed: make(chan struct{})}
	go d.read()
	return d, nil
}

// Close ends all watches. It must be called once.
func (d *Doors) Close() error {
	close(d.closed)
	return d.watcher.Close()
}

// read reads events until the watcher is closed.
func (d *Doors) read() {
	for {
		select {
		case e, ok := <-d.watcher.Events:
			if !ok {
				return
			}
			called := e.Name
			// Another container, such as a debugging one, begins with a folder.
			if e.Has(fsnotify.Create) || isDoor(filepath.Base(e.Name)) {
				called = filepath.Dir(e.Name)
			}
			if e.Has(fsnotify.Create) || e.Has(fsnotify.Write) {
				d.call(func(at string) bool { return at == called })
			}
		case err, ok := <-d.watcher.Errors:
			if !ok {
				return
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) { // for an unknown cgroup or pipe
				d.call(func(string) bool { return true })
			}
		}
	}
}

// isDoor reports whether processes enter a cgroup by writing to a file of it.
func isDoor(name string) bool {
	return name == "cgroup.procs" || name == "cgroup.threads" || name == "tasks"
}

// call calls the functions of the folders and pipes that match.
func (d *Doors) call(match func(path string) bool) {
	d.mu.Lock()
	var all []func()
	for path, f := range d.calls {
		if match(path) {
			all = append(all, f)
		}
	}
	d.mu.Unlock()
	for _, f := range all {
		f()
	}
}

// Watched is a cgroup that a Doors watches.
type Watched struct {
	doors   *Doors
	cgroup  string
	dirs    []string // its folder and those below it
	pipes   []string // into which writes are reported as well
	entered func()
	tasks   uint64 // inside, as last counted; with version 2
}
