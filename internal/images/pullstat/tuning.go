// SPDX-License-Identifier: Apache-2.0

package pullstat

import (
	"fmt"
	"slices"
	"strings"
)

// RecommendedUnpackers is the number of layers that containerd should unpack at once. It is more than two cores, since
// a layer waits for the disk from time to time.
const RecommendedUnpackers = 4

// DefaultDownloads is the number of layers that containerd downloads at once by default.
const DefaultDownloads = 3

// UnpacksInParallel reports whether a version of containerd unpacks layers in parallel, and correctly: 2.2.3 or later
// (containerd issue 13030).
func UnpacksInParallel(version string) bool {
	var v [3]int
	_, _ = fmt.Sscanf(version, "%d.%d.%d", &v[0], &v[1], &v[2]) // anything but a number counts as 0
	return slices.Compare(v[:], []int{2, 2, 3}) >= 0
}

// GzipHelper is a program with which containerd can decompress gzip.
type GzipHelper struct {
	// Program is its name, and Package the Debian package that has it.
	Program, Package string
}

// GzipHelpers returns the programs with which a version of containerd decompresses gzip. It uses the first one in its
// $PATH.
func GzipHelpers(version string) []GzipHelper {
	unpigz := GzipHelper{"unpigz", "pigz"}
	if strings.HasPrefix(version, "1.") {
		return []GzipHelper{unpigz}
	}
	return []GzipHelper{{"igzip", "isal"}, unpigz}
}
