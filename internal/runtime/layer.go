// SPDX-License-Identifier: Apache-2.0

package runtime

import "context"

// Layer describes what a pod's containers have written into their own layers, the copy-on-write file systems above
// their images. It is lost when the pod ends.
type Layer struct {
	// Bytes is the disk space that it takes.
	Bytes int64
	// Folders has the bytes below each folder of the first three levels, by its path in the container. It is nil if
	// the snapshotter does not report it.
	Folders map[string]int64
	// EmptyDirs has the bytes in the emptyDir volumes that were asked for, by their names.
	EmptyDirs map[string]int64
}

// LayerMeter is an optional interface for runtimes that measure layers.
type LayerMeter interface {
	// Layer measures the layer of a pod, and some of its emptyDir volumes on disk, or returns ErrNotFound if there is no
	// such pod. It looks at each file that the pod has written or removed.
	Layer(ctx context.Context, podID string, emptyDirs ...string) (Layer, error)
}
