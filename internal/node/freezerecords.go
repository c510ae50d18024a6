// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// freezeRecords record frozen pods in a folder, in one file each, so that they are found if this process is killed. A
// record exists from before its pod is frozen until after it has been thawed.
type freezeRecords struct{ dir string }

// frozenPlace is the location of a frozen pod.
type frozenPlace struct {
	cgroup string // its path below the root of the hierarchies
	netns  string // the path of its network namespace, in a cluster; else empty
}

func freezeRecordsIn(runDir string) freezeRecords {
	return freezeRecords{filepath.Join(runDir, "frozen")}
}

func (r freezeRecords) file(id uint64) string {
	return filepath.Join(r.dir, strconv.FormatUint(id, 16))
}

// write records a pod that is about to be frozen.
func (r freezeRecords) write(id uint64, at frozenPlace) error {
	text := []byte(at.cgroup)
	if at.netns != "" {
		text = []byte(at.cgroup + "\n" + at.netns)
	}
	err := os.WriteFile(r.file(id), text, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(r.dir, 0o700); err == nil {
			err = os.WriteFile(r.file(id), text, 0o600)
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

// read returns the locations of the recorded pods. A file that was being written when its daemon was killed is empty:
// its pod was not frozen yet.
func (r freezeRecords) read() (map[uint64]frozenPlace, error) {
	noted := map[uint64]frozenPlace{}
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return noted, err
	}
	for _, e := range entries {
		id, err := strconv.ParseUint(e.Name(), 16, 64)
		if err != nil {
			continue
		}
		text, err := os.ReadFile(r.file(id))
		if err != nil {
			return noted, err
		}
		if len(text) > 0 {
			cgroup, netns, _ := strings.Cut(string(text), "\n")
			noted[id] = frozenPlace{cgroup, netns}
		}
	}
	return noted, nil
}

// mayThaw fails if an earlier daemon of a cluster has left pods frozen, and this one may not thaw them.
func (c *Config) mayThaw(r freezeRecords) error {
	if c.CRI == "" || c.CgroupRoot != "" {
		return nil
	}
	noted, err := r.read()
	if err == nil && len(noted) > 0 {
		err = fmt.Errorf("%d pods are frozen, which this daemon may not thaw: install the chart with "+
			"daemon.freezing.enabled=true until they run", len(noted))
	}
	return err
}

// thawNoted thaws all recorded pods, which no daemon owns, and removes their records. Pods that cannot be thawed do not
// keep the others frozen.
func thawNoted(r freezeRecords, c cgroups) error {
	noted, err := r.read()
	for id, at := range noted {
		if e := c.Thaw(at.cgroup); e != nil && !c.Gone(at.cgroup) {
			err = errors.Join(err, fmt.Errorf("a frozen pod is left: %w", e))
			continue
		}
		err = errors.Join(err, r.remove(id))
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(r.dir)
}
