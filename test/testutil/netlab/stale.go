// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Prefix begins the names of all namespaces of this package. The pid and start time of the creating process follow.
const Prefix = "wgl-"

// CleanStale removes the namespaces of processes that have exited, and kills whatever still runs in them. Namespaces of
// living processes and of other programs stay.
func CleanStale() error {
	entries, err := os.ReadDir(Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for stale network namespaces: %w", err)
	}
	var errs []error
	for _, e := range entries {
		pid, start, ok := ownerOf(e.Name())
		if !ok {
			continue
		}
		if now, err := startTime(pid); err == nil && now == start {
			continue
		}
		ns := &Namespace{Name: e.Name(), Path: filepath.Join(Dir, e.Name())}
		if _, err := ns.remove(); err != nil {
			errs = append(errs, fmt.Errorf("clean up after process %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

// ownerOf parses pid and start time from a name.
func ownerOf(name string) (pid int, start string, ok bool) {
	rest, ours := strings.CutPrefix(name, Prefix)
	parts := strings.SplitN(rest, "-", 4)
	if !ours || len(parts) != 4 {
		return 0, "", false
	}
	pid, err := strconv.Atoi(parts[0])
	if _, startErr := strconv.ParseUint(parts[1], 10, 64); err != nil || startErr != nil || pid <= 0 {
		return 0, "", false
	}
	return pid, parts[1], true
}
