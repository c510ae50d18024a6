// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
)

// recordsWait is how long removeOrphans waits for the lock of the snapshotter's records.
const recordsWait = time.Second

// removeOrphans is removeOrphansOf for each snapshotter that keeps its snapshots in folders like overlayfs.
func removeOrphans(ctx context.Context, stateDir string) error {
	var errs []error
	for _, s := range []string{"overlayfs", "native", "erofs"} {
		if err := removeOrphansOf(ctx, snapshotterRoot(stateDir, s)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s, err))
		}
	}
	return errors.Join(errs...)
}

// removeOrphansOf removes folders of snapshots that a stopped own containerd has no record of. A containerd that was
// killed between making a folder and recording it gives the next snapshot the same number, and each attempt would
// fail with "file exists" until containerd happens to collect garbage. containerd 1.x has no request for that. It
// fails if the records are in use or unreadable, or a folder cannot be removed.
func removeOrphansOf(ctx context.Context, root string) (err error) {
	records := filepath.Join(root, "metadata.db")
	if _, err := os.Stat(records); errors.Is(err, fs.ErrNotExist) {
		return nil // never started
	}
	store, err := storage.NewMetaStore(records, func(o *bolt.Options) error {
		o.Timeout = recordsWait
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return store.WithTransaction(ctx, false, func(ctx context.Context) error {
		known, err := storage.IDMap(ctx)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		folders := filepath.Join(root, "snapshots")
		entries, err := os.ReadDir(folders)
		if err != nil {
			return err
		}
		var errs []error
		for _, e := range entries {
			if _, ok := known[e.Name()]; !ok {
				errs = append(errs, os.RemoveAll(filepath.Join(folders, e.Name())))
			}
		}
		return errors.Join(errs...)
	})
}
