// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
)

// builtIn are containerd's own snapshotters. Snapshotters that a machine adds may not answer, so they are queried
// only if chosen.
var builtIn = []string{"blockfile", "btrfs", "devmapper", "erofs", "native", "overlayfs", "zfs"}

// Snapshotters returns the snapshotters that a containerd can use, except for lazy pulls. The error says why it
// cannot use the chosen one, and lists the usable ones; an empty choice means any.
func Snapshotters(ctx context.Context, c *client.Client, address, chosen string) ([]string, error) {
	found, err := c.IntrospectionService().Plugins(ctx, "type=="+snapshotterPlugin)
	if err != nil {
		return nil, fmt.Errorf("ask containerd for its snapshotters: %w", native(err))
	}
	var usable []string
	why := "does not have it"
	for _, p := range found.Plugins {
		if p.InitErr == nil && p.ID != lazySnapshotter {
			usable = append(usable, p.ID)
		} else if p.ID == chosen && p.InitErr != nil {
			why = "cannot use it: " + strings.TrimSuffix(p.InitErr.Message, ": skip plugin")
		}
	}
	slices.Sort(usable)
	if chosen == "" || slices.Contains(usable, chosen) {
		return usable, nil
	}
	if chosen == lazySnapshotter {
		why = "has it for services with imagePull.mode Lazy only"
	}
	return nil, fmt.Errorf("snapshotter %q: containerd at %s %s: choose one of %s", chosen, address, why,
		strings.Join(usable, ", "))
}

// findSnapshotters finds the snapshotters that may have layers of this instance.
func (r *Runtime) findSnapshotters(ctx context.Context) error {
	usable, err := Snapshotters(ctx, r.client, r.address, r.cfg.Snapshotter)
	if err != nil {
		return err
	}
	chosen := r.cfg.snapshotter()
	r.snapshotters = slices.DeleteFunc(usable, func(s string) bool {
		return s != chosen && !slices.Contains(builtIn, s)
	})
	return nil
}

// allSnapshotters returns the snapshotters that may have layers of this instance, including earlier ones: the machine
// may have been switched off while an instance with another one ran.
func (r *Runtime) allSnapshotters() []string {
	if r.lazy.inUse() == "" {
		return r.snapshotters
	}
	return append(slices.Clone(r.snapshotters), lazySnapshotter)
}

// snapshottersOf returns the snapshotters that may have the layer of a container.
func (r *Runtime) snapshottersOf(id string) []string {
	r.mu.Lock()
	p := r.pods[id]
	r.mu.Unlock()
	if p != nil && p.snapshotter != "" {
		return []string{p.snapshotter}
	}
	return r.allSnapshotters()
}

// copiesImages reports whether a snapshotter gives each container a copy of its image, and includes that copy in
// measurements.
func copiesImages(snapshotter string) bool {
	return snapshotter == "native" || snapshotter == "blockfile"
}

// deactivateIn bounds the wait for containerd to unmount what it has mounted.
const deactivateIn = time.Minute

// MountSnapshot mounts the file system of a snapshot at the folder root. unmount is never nil, and undoes it. If the
// mounts refer to each other, as with the snapshotter erofs, containerd makes them, under a name.
func MountSnapshot(
	ctx context.Context, c *client.Client, name string, mounts []mount.Mount, root string,
) (unmount func() error, err error) {
	deactivate := func() error { return nil }
	if slices.ContainsFunc(mounts, func(m mount.Mount) bool { return strings.Contains(m.Type, "/") }) {
		info, err := c.MountManager().Activate(ctx, name, mounts)
		if err != nil {
			return deactivate, fmt.Errorf("activate %+v: %w", mounts, native(err))
		}
		mounts = info.System
		deactivate = func() error {
			ctx, cancel := context.WithTimeout(context.Background(), deactivateIn)
			defer cancel()
			err := native(c.MountManager().Deactivate(ctx, name))
			if errdefs.IsNotFound(err) {
				return nil // containerd's garbage collector can be quicker
			}
			return err
		}
	}
	unmount = func() error { return errors.Join(mount.UnmountAll(root, 0), deactivate()) }
	if err := mount.All(mounts, root); err != nil { // some of several may have been made
		return unmount, fmt.Errorf("mount %+v at %s: %w", mounts, root, err)
	}
	return unmount, nil
}
