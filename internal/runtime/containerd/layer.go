// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/runtime"
)

var _ runtime.LayerMeter = (*Runtime)(nil)

// layerDepth is the number of levels of folders in a Layer.
const layerDepth = 3

// Layer implements runtime.LayerMeter, for all containers of a pod together. If the pod's own files are in a folder, as
// with overlayfs, it walks the folder; otherwise containerd measures the snapshot.
func (r *Runtime) Layer(ctx context.Context, podID string, emptyDirs ...string) (runtime.Layer, error) {
	r.mu.Lock()
	p := r.pods[podID]
	r.mu.Unlock()
	if p == nil {
		return runtime.Layer{}, fmt.Errorf("pod %s: %w", podID, runtime.ErrNotFound)
	}
	var sum runtime.Layer
	for _, id := range r.containersOf(podID) {
		l, err := r.layerOf(ctx, id)
		if err != nil {
			return l, fmt.Errorf("service %s: layer of container %s: %w", p.Service, id, err)
		}
		sum.Bytes += l.Bytes
		if sum.Folders == nil {
			sum.Folders = l.Folders
			continue
		}
		for folder, bytes := range l.Folders {
			sum.Folders[folder] += bytes
		}
	}
	sum.EmptyDirs = make(map[string]int64, len(emptyDirs))
	for _, name := range emptyDirs {
		u, err := fs.DiskUsage(ctx, filepath.Join(r.cfg.emptyDirs(), podID, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // an earlier version made it elsewhere
		}
		if err != nil {
			return sum, fmt.Errorf("service %s: volume %q of pod %s: %w", p.Service, name, podID, err)
		}
		sum.EmptyDirs[name] = u.Size
	}
	return sum, nil
}

// layerOf measures the layer of one container.
func (r *Runtime) layerOf(ctx context.Context, id string) (l runtime.Layer, err error) {
	err = fmt.Errorf("snapshot: %w", runtime.ErrNotFound)
	for _, s := range r.snapshottersOf(id) {
		if l, err = r.measureLayer(ctx, s, id); err == nil {
			return l, nil
		}
	}
	return l, err
}

func (r *Runtime) measureLayer(ctx context.Context, snapshotter, id string) (l runtime.Layer, err error) {
	service := r.client.SnapshotService(snapshotter)
	mounts, err := service.Mounts(ctx, id)
	if err != nil {
		return l, native(err)
	}
	for _, m := range mounts {
		for _, o := range m.Options {
			if dir, ok := strings.CutPrefix(o, "upperdir="); ok {
				return walkLayer(ctx, dir)
			}
		}
	}
	u, err := service.Usage(ctx, id)
	if err != nil || !copiesImages(snapshotter) {
		return runtime.Layer{Bytes: u.Size}, native(err)
	}
	info, err := service.Stat(ctx, id)
	if err != nil {
		return l, native(err)
	}
	image, err := service.Usage(ctx, info.Parent)
	return runtime.Layer{Bytes: max(u.Size-image.Size, 0)}, native(err)
}

// walkLayer adds up the files of a folder. Files that are removed meanwhile do not count.
func walkLayer(ctx context.Context, dir string) (runtime.Layer, error) {
	l := runtime.Layer{Folders: map[string]int64{}}
	seen := map[uint64]bool{} // inodes with several names
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR || st.Nlink > 1 && seen[st.Ino] {
			return nil
		}
		if st.Nlink > 1 {
			seen[st.Ino] = true
		}
		n := st.Blocks * 512
		l.Bytes += n
		parts := strings.Split(strings.TrimPrefix(filepath.Dir(path), dir), "/")
		for depth := 2; depth <= min(len(parts), layerDepth+1); depth++ {
			l.Folders[strings.Join(parts[:depth], "/")] += n
		}
		return nil
	})
	return l, err
}
