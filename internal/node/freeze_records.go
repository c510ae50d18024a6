// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// freezeRecords note the cgroups of frozen pods in a folder, a file for each, so that they are found if this process is
// killed. A record is there before its pod is frozen, and until it has been thawed.
type freezeRecords struct{ dir string }

func freezeRecordsIn(runDir string) freezeRecords {
	return freezeRecords{filepath.Join(runDir, "frozen")}
}

func (r freezeRecords) file(id uint64) string {
	return filepath.Join(r.dir, strconv.FormatUint(id, 16))
}

// write notes a pod that is about to be frozen.
func (r freezeRecords) write(id uint64, cgroup string) error {
	err := os.WriteFile(r.file(id), []byte(cgroup), 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(r.dir, 0o700); err == nil {
			err = os.WriteFile(r.file(id), []byte(cgroup), 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("noting a frozen pod: %w", err)
	}
	return nil
}

// remove forgets a pod.
func (r freezeRecords) remove(id uint64) error {
	if err := os.Remove(r.file(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// read returns the cgroups of the noted pods. A file that was being written when its daemon was killed is empty: its
// pod was not frozen yet.
func (r freezeRecords) read() (map[uint64]string, error) {
	cgroups := map[uint64]string{}
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cgroups, err
	}
	for _, e := range entries {
		id, err := strconv.ParseUint(e.Name(), 16, 64)
		if err != nil {
			continue
		}
		text, err := os.ReadFile(r.file(id))
		if err != nil {
			return cgroups, err
		}
		if len(text) > 0 {
			cgroups[id] = string(text)
		}
	}
	return cgroups, nil
}

// thawNoted thaws all noted pods, which no daemon owns any more, and removes the notes.
func thawNoted(r freezeRecords, c cgroups) error {
	noted, err := r.read()
	if err != nil {
		return err
	}
	for id, cgroup := range noted {
		if err := c.Thaw(cgroup); err != nil && !c.Gone(cgroup) {
			return fmt.Errorf("a frozen pod is left: %w", err)
		}
		if err := r.remove(id); err != nil {
			return err
		}
	}
	return os.RemoveAll(r.dir)
}
