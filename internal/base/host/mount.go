// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// MountOf returns the mount, from /proc/self/mountinfo, that contains an absolute path without symbolic links.
func MountOf(path string) (*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("mounts of this process: %w", err)
	}
	m := covering(path, mounts)
	if m == nil {
		return nil, fmt.Errorf("%s is on none of the file systems in /proc/self/mountinfo", path)
	}
	return m, nil
}

// covering returns the deepest mount that contains a path; nil if there is none. Of several mounts at one place, the
// last one covers the others. mountinfo.ParentsFilter would take /var/lib for a parent of /var/library.
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
