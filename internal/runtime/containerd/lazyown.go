// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
)

// snapshotterProgram is the program behind lazySnapshotter.
const snapshotterProgram = "wangell-snapshotter"

// LazyRoot is the folder of an own snapshotter, in the state folder dir.
func LazyRoot(dir string) string { return filepath.Join(OwnRoot(dir), "lazy") }

// lazySocket is the socket of the own snapshotter.
func (o *Own) lazySocket() string { return filepath.Join(o.dir(), "lazy.sock") }

// usedLazy reports whether this instance has ever had a snapshotter, and so may have snapshots of it.
func (o *Own) usedLazy() bool {
	_, err := os.Stat(LazyRoot(o.cfg.StateDir))
	return err == nil
}

// startLazy returns once the own snapshotter answers. Like containerd it outlives this process, because running
// containers read their files through it, and is restarted whenever it exits.
func (o *Own) startLazy(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lazy != nil {
		return nil
	}
	program, err := FindSnapshotter()
	if err != nil {
		return err
	}
	socket := o.lazySocket()
	argv := []string{program, "--root", LazyRoot(o.cfg.StateDir), "--socket", socket}
	for _, r := range o.cfg.InsecureRegistries {
		argv = append(argv, "--insecure-registry", r)
	}
	l := &lasting{
		name: snapshotterProgram, argv: argv, key: socket,
		pid: filepath.Join(o.dir(), "lazy.pid"), logs: filepath.Join(o.cfg.StateDir, "logs", snapshotterProgram+".log"),
		effect: ", and so are the pods that used it", log: o.cfg.Log,
		answers: func(ctx context.Context) error {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
			if err == nil {
				err = c.Close()
			}
			return err
		},
	}
	if err := l.begin(ctx); err != nil {
		return err
	}
	o.lazy = l
	return nil
}

// takeLazy returns the snapshotter, which the caller then ends; nil if there is none.
func (o *Own) takeLazy() *lasting {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lazy
	o.lazy = nil
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
