// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"wangell.loutres.me/internal/base/cgroup"
)

// CPU returns the CPU time that the processes of a cgroup have used on all cores.
func (f *Freezer) CPU(path string) (time.Duration, error) {
	used, err := cgroup.Field(filepath.Join(f.root, path, "cpu.stat"), "usage_usec")
	if err == nil {
		return time.Duration(used) * time.Microsecond, nil
	}
	for _, place := range []string{"cpuacct", "cpu,cpuacct"} {
		n, err := cgroup.Number(filepath.Join(f.root, place, path, "cpuacct.usage"))
		if !errors.Is(err, fs.ErrNotExist) {
			return time.Duration(n), err
		}
	}
	return 0, fmt.Errorf("cgroup %s: the kernel does not account for its CPU usage", path)
}
