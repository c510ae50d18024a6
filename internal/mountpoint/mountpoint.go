// SPDX-License-Identifier: Apache-2.0

// Package mountpoint finds what a path is mounted on.
package mountpoint

import (
	"fmt"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Of returns the mount that an absolute path without symbolic links lies on, as /proc/self/mountinfo has it.
func Of(path string) (*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("mounts of this process: %w", err)
	}
	m := covering(path, mounts)
	if m == nil {
		return nil, fmt.Errorf("%s is on no file system of /proc/self/mountinfo", path)
	}
	return m, nil
}

// covering returns the deepest of the mounts that a path is below; nil if there is none. The last one at a place covers
// the others. mountinfo.ParentsFilter takes /var/lib for a parent of /var/library.
func covering(path string, mounts []*mountinfo.Info) (m *mountinfo.Info) {
	for _, other := range mounts {
		at := other.Mountpoint
		below := at == "/" || path == at || strings.HasPrefix(path, at+"/")
		if below && (m == nil || len(at) >= len(m.Mountpoint)) {
			m = other
		}
	}
	return m
}
