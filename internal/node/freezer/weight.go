// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"

	"wangell.loutres.me/internal/base/cgroup"
)

// weighing is a file with the weight of a cgroup.
type weighing struct {
	file string
	// least is the largest weight of a pod whose containers request 1m of CPU each.
	least uint64
}

// weighing finds the file for a cgroup, of version 2 or 1.
func (f *Freezer) weighing(path string) (w weighing, now uint64, err error) {
	for _, w := range []weighing{
		{filepath.Join(f.root, path, "cpu.weight"), 2},
		{filepath.Join(f.root, "cpu", path, "cpu.shares"), 10},
		{filepath.Join(f.root, "cpu,cpuacct", path, "cpu.shares"), 10},
	} {
		now, err := cgroup.Number(w.file)
		if !errors.Is(err, fs.ErrNotExist) {
			return w, now, err
		}
	}
	return w, 0, fmt.Errorf("cgroup %s: it has no weight of its CPU", path)
}

// Weight returns the weight with which a cgroup competes for the processors, in the unit of its version.
func (f *Freezer) Weight(path string) (uint64, error) {
	_, now, err := f.weighing(path)
	return now, err
}

// RestoreWeight gives a cgroup a former Weight, if it has that of a pod that gave its requests back. Another one is
// what somebody has decided since.
func (f *Freezer) RestoreWeight(path string, former uint64) error {
	w, now, err := f.weighing(path)
	if err != nil || now > w.least || former <= now {
		return err
	}
	return write(w.file, strconv.FormatUint(former, 10))
}
