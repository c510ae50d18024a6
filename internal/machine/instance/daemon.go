// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"sync"

	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/machine/manifest"
	"wangell.loutres.me/internal/show/httpapi"
)

// daemon keeps the daemon running from the first service on. The daemon is a process of its own, so that traffic does
// not depend on this one. Without a service no gate is needed; once attached, it stays until the instance ends.
type daemon struct {
	child child
	fail  func(error) // ends the instance
	once  sync.Once   // reports that the instance is ready

	mu      sync.Mutex
	cancel  context.CancelFunc // nil before start
	stopped bool
	running sync.WaitGroup
}

// start starts the daemon, unless it was started or stopped before.
func (d *daemon) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil || d.stopped {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	d.running.Go(func() {
		if err := d.child.keep(ctx); err != nil {
			d.fail(err)
		}
	})
}

// started reports whether start was called.
func (d *daemon) started() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cancel != nil
}

// stop stops the daemon, if it runs, and waits for its end.
func (d *daemon) stop() {
	d.mu.Lock()
	d.stopped = true
	if d.cancel != nil {
		d.cancel()
	}
	d.mu.Unlock()
	d.running.Wait()
}

// local is the controller for the local API and the metrics.
type local struct {
	*controller.Controller
	daemon   *daemon
	services *services
}

// Ready returns why services cannot be woken; nil if they can, or if there is no service and thus no daemon.
func (l local) Ready() error {
	if !l.daemon.started() {
		return nil
	}
	return l.Controller.Ready()
}

// brokenFiles holds the manifests with mistakes.
type brokenFiles struct {
	mu   sync.Mutex
	list []httpapi.BrokenFile
}

// set stores the errors of the last load of the manifests, and of their application as a whole; nil if there were none.
func (b *brokenFiles) set(load, apply error) {
	list := []httpapi.BrokenFile{}
	all := func(err error) { list = append(list, httpapi.BrokenFile{File: "-f", Errors: []string{err.Error()}}) }
	if apply != nil {
		all(apply)
	}
	if errs := (manifest.Errors)(nil); errors.As(load, &errs) {
		for _, of := range errs.ByFile() {
			file := httpapi.BrokenFile{File: of[0].File}
			for _, e := range of {
				file.Errors = append(file.Errors, e.Error())
			}
			list = append(list, file)
		}
	} else if load != nil {
		all(load)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = list
}

// get returns the manifests with mistakes, sorted by file.
func (b *brokenFiles) get() []httpapi.BrokenFile {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.list
}
