// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/image-spec/identity"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/runtime/containerd"
)

// Mounted pulls an image into a throw-away containerd and calls f with the folder where its file system is mounted, as
// a container would see it. It needs root. Everything is removed afterwards.
func Mounted(ctx context.Context, o Options, f func(root string) error) (err error) {
	from, err := findSource(o.Image, o.Insecure)
	if err != nil {
		return err
	}
	defer from.close()
	s, err := startScratch(ctx, o, from.plain())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	pull := s.pullClient
	if o.Via == ViaCRI {
		pull = s.pullCRI
	}
	if _, err := pull(ctx, from, o.Unpackers); err != nil {
		return fmt.Errorf("pull %s: %w", o.Image, explain(from.ref, err))
	}
	return s.mounted(ctx, from.ref, f)
}

// mounted calls f with the folder where a pulled image is mounted.
func (s *scratch) mounted(ctx context.Context, ref string, f func(root string) error) (err error) {
	image, err := s.client.GetImage(ctx, ref)
	if err != nil {
		return err
	}
	diffIDs, err := image.RootFS(ctx)
	if err != nil {
		return err
	}
	mounts, err := s.client.SnapshotService(s.snapshotter).View(ctx, "mounted", identity.ChainID(diffIDs).String())
	if err != nil {
		return fmt.Errorf("snapshot of %s: %w", ref, err)
	}
	root := s.path("mounted")
	if err := unix.Mkdir(root, 0o700); err != nil {
		return err
	}
	unmount, err := containerd.MountSnapshot(ctx, s.client, "mounted", mounts, root)
	defer func() { err = errors.Join(err, unmount()) }()
	if err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	return f(root)
}
