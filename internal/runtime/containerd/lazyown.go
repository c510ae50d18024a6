// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// SharedLazyRoot is the folder of the snapshotter that a containerd of the machine uses.
const SharedLazyRoot = "/var/lib/wangell/lazy"

// lazySnapshotter is containerd's name for wangell-snapshotter, which mounts layers before they are complete.
const lazySnapshotter = "wangell-lazy"

// snapshotterProgram is the program behind lazySnapshotter.
const snapshotterProgram = "wangell-snapshotter"

// LazyRoot is the folder of an own snapshotter, in the state folder dir.
func LazyRoot(dir string) string { return filepath.Join(OwnRoot(dir), "lazy") }

// ownSnapshotter is the process of wangell-snapshotter that belongs to an own containerd.
type ownSnapshotter struct {
	// root is its folder, socket its socket, and pid and logs are its files.
	root, socket, pid, logs string
	// insecure are the registries that are used without TLS.
	insecure []string
	log      *slog.Logger

	mu      sync.Mutex
	running *lasting // nil until it is needed
}

// used reports whether this instance has ever had a snapshotter, and so may have snapshots of it.
func (o *ownSnapshotter) used() bool {
	_, err := os.Stat(o.root)
	return err == nil
}

// start returns once the snapshotter answers. Like containerd it outlives this process, because running containers
// read their files through it, and is restarted whenever it exits.
func (o *ownSnapshotter) start(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running != nil {
		return nil
	}
	program, err := FindSnapshotter()
	if err != nil {
		return err
	}
	argv := []string{program, "--root", o.root, "--socket", o.socket}
	for _, r := range o.insecure {
		argv = append(argv, "--insecure-registry", r)
	}
	l := &lasting{
		name: snapshotterProgram, argv: argv, key: o.socket, pid: o.pid, logs: o.logs,
		effect: ", and so are the pods that used it", log: o.log,
		answers: func(ctx context.Context) error {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", o.socket)
			if err == nil {
				err = c.Close()
			}
			return err
		},
	}
	if err := l.begin(ctx); err != nil {
		return err
	}
	o.running = l
	return nil
}

// release ends the supervision and leaves the snapshotter running.
func (o *ownSnapshotter) release() {
	if l := o.take(); l != nil {
		l.release()
	}
}

// end stops the snapshotter and removes its mounts, which remain if it had to be killed.
func (o *ownSnapshotter) end() error {
	l := o.take()
	if l == nil {
		return nil
	}
	return errors.Join(l.end(), UnmountBelow(o.root))
}

// take returns the snapshotter, which the caller then ends; nil if there is none.
func (o *ownSnapshotter) take() *lasting {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.running
	o.running = nil
	return l
}

// FindSnapshotter returns the program wangell-snapshotter: it is beside this one, or in $PATH.
func FindSnapshotter() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), snapshotterProgram)
		if path, err := exec.LookPath(beside); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(snapshotterProgram)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside this program nor in $PATH: install it", snapshotterProgram)
	}
	return path, nil
}
