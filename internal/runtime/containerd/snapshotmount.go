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

// deactivateIn bounds the wait for containerd to unmount what it has mounted.
const deactivateIn = time.Minute

// MountSnapshot mounts the file system of a snapshot at the folder root. unmount is never nil, and undoes it. Mounts
// that refer to each other, as those of the snapshotter erofs do, are made by containerd, under a name.
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
