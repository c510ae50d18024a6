// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// MinKernel is the first version of Linux with tcx links, which the gate needs.
var MinKernel = [2]int{6, 6}

// KernelTooOld reports whether a release of Linux (uname -r) is older than MinKernel. It is an error if the release
// does not begin with a version.
func KernelTooOld(release string) (bool, error) {
	var got [2]int
	if _, err := fmt.Sscanf(release, "%d.%d", &got[0], &got[1]); err != nil {
		return false, fmt.Errorf("cannot parse release %q", release)
	}
	return slices.Compare(got[:], MinKernel[:]) < 0, nil
}

// loadHint returns what to do when a kernel does not load the gate. Old kernels of distributions may have tcx, so they
// are tried first.
func loadHint(release string) string {
	if old, err := KernelTooOld(release); old && err == nil {
		return fmt.Sprintf("Linux %s is too old: boot Linux %d.%d or later", release, MinKernel[0], MinKernel[1])
	}
	return `see "wangell doctor"`
}

// KernelRelease returns what uname -r prints; empty on failure.
func KernelRelease() string {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return ""
	}
	return unix.ByteSliceToString(uts.Release[:])
}
