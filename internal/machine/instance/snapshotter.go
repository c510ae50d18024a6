// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"wangell.loutres.me/internal/base/atomicfile"
	"wangell.loutres.me/internal/runtime/containerd"
)

// snapshotter is Snapshotter or its default.
func (c Config) snapshotter() string { return cmp.Or(c.Snapshotter, containerd.DefaultSnapshotter) }

// noteSnapshotter records the snapshotter in the state folder, for commands that are used while no instance runs.
func (c Config) noteSnapshotter() error {
	last, err := LastSnapshotter(c.StateDir)
	if err != nil || last == c.snapshotter() {
		return err
	}
	return atomicfile.Write(c.snapshotterFile(), []byte(c.snapshotter()+"\n"))
}

// LastSnapshotter returns the snapshotter of the last instance that used a state folder.
func LastSnapshotter(stateDir string) (string, error) {
	text, err := os.ReadFile(Config{StateDir: stateDir}.snapshotterFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("snapshotter of the last instance: %w", err)
	}
	return cmp.Or(strings.TrimSpace(string(text)), containerd.DefaultSnapshotter), nil
}
