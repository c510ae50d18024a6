// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"errors"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// Doors reports processes that enter cgroups from outside, as for exec: it watches for the container runtime's writes
// to cgroup.procs (inotify(7)), which costs no CPU. With version 2 it counts processes as well.
type Doors struct {
	freezer *Freezer
	watcher *fsnotify.Watcher

	mu       sync.Mutex
	entered  map[string]func() // by the folder of a cgroup
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
	d := &Doors{freezer: f, watcher: w, entered: map[string]func(){}, counted: map[*Watched]bool{},
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
			dir := filepath.Dir(e.Name)
			// Another container, such as a debugging one, begins with a folder.
			if e.Has(fsnotify.Create) || e.Has(fsnotify.Write) && isDoor(filepath.Base(e.Name)) {
				d.call(func(at string) bool { return at == dir })
			}
		case err, ok := <-d.watcher.Errors:
			if !ok {
				return
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) { // for an unknown cgroup
				d.call(func(string) bool { return true })
			}
		}
	}
}

// isDoor reports whether processes enter a cgroup by writing to a file of it.
func isDoor(name string) bool {
	return name == "cgroup.procs" || name == "cgroup.threads" || name == "tasks"
}

// call calls the functions of the folders that match.
func (d *Doors) call(match func(dir string) bool) {
	d.mu.Lock()
	var all []func()
	for dir, entered := range d.entered {
		if match(dir) {
			all = append(all, entered)
		}
	}
	d.mu.Unlock()
	for _, entered := range all {
		entered()
	}
}

// Watched is a cgroup that a Doors watches.
type Watched struct {
	doors   *Doors
	cgroup  string
	dirs    []string // its folder and those below it
	entered func()
	tasks   uint64 // inside, as last counted; with version 2
}
